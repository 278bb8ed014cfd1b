#include "lib/comm/connect/acceptor.hpp"

#include <poll.h>

#include <elrun/units.hpp>

#include "lib/link/socket.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr Duration accept_pause = 50ms;

}  // namespace

void Acceptor::open(Fd listener, Accepted accepted, HasRoom has_room) {
  accepted_ = std::move(accepted);
  has_room_ = std::move(has_room);
  family_ = local_address(listener.get()).family();
  listener_.emplace(loop_, listener.get());  // throws where the system has no watch for it
  (void)listener.give_up();
  accept();
}

void Acceptor::close() { listener_.reset(); }

void Acceptor::accept() {
  listener_->async_wait(asio::posix::stream_descriptor::wait_read, [this](const ErrorCode& error) {
    if (error || !listener_) return;
    for (;;) {
      pollfd waiting{listener_->native_handle(), POLLIN, 0};
      if (::poll(&waiting, 1, 0) < 1) return accept();
      if (!has_room_(family_)) return accept_later();
      auto accepted = accept_one(listener_->native_handle());
      if (!accepted.ok()) return accept_later();  // no descriptor is free
      if (!*accepted) return accept();
      accepted_(std::move(**accepted), family_);
    }
  });
}

/// The listener stays readable: wait instead of spinning on it.
void Acceptor::accept_later() {
  pause_.expires_after(accept_pause);
  pause_.async_wait([this](const ErrorCode& stopped) {
    if (!stopped && listener_) accept();
  });
}

}  // namespace elrun::inline v0
