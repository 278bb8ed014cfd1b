#include "rendezvous/net/lookup.hpp"

#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <boost/asio/post.hpp>

#include <fmt/format.h>

#include "lib/base/fd.hpp"

namespace elrun::inline v0 {
namespace {

Address address_of(const SocketAddress& found) {
  const bool six = found.family() == AF_INET6;
  const std::string text = to_string(found);
  return {found.host(), text, (six ? "ipv6:" : "ipv4:") + text, found};
}

// May take as long as the name servers do.
Resolved resolve_name(const Resolver& resolver, const Endpoint& endpoint) {
  Resolved out;
  const auto found = resolver(endpoint.host, endpoint.port);
  if (!found.ok()) out.problem = found.failure().what;
  else
    for (const SocketAddress& address : *found) out.addresses.push_back(address_of(address));
  return out;
}

}  // namespace

// A datagram socket that is connected sends nothing.
std::string source_address(const Address& peer) {
  const SocketAddress& to = peer.socket;
  const Fd socket{::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0) return {};
  return local_address(socket.get()).host();
}

// Where the thread leaves its result; whoever asked, and the loop, may be gone by then.
struct NameLookup::Mailbox {
  std::mutex mutex;
  bool open = true;                      // under the mutex
  std::function<void(Resolved)> answer;  // loop thread only
};

void run_detached(std::function<void()> call) { std::thread{std::move(call)}.detach(); }

NameLookup::NameLookup(boost::asio::io_context& loop, Resolver resolver, Threads threads)
    : loop_{loop}, resolver_{std::move(resolver)}, threads_{std::move(threads)} {}

NameLookup::~NameLookup() {
  if (!mailbox_) return;
  const std::lock_guard lock{mailbox_->mutex};
  mailbox_->open = false;
}

void NameLookup::start(const Endpoint& endpoint, std::function<void(Resolved)> answer) {
  if (mailbox_) {
    const std::lock_guard lock{mailbox_->mutex};
    mailbox_->open = false;
  }
  mailbox_.reset();
  if (const auto literal = literal_address(endpoint.host, endpoint.port)) return answer({{address_of(*literal)}, {}});
  mailbox_ = std::make_shared<Mailbox>();
  mailbox_->answer = std::move(answer);
  const auto deliver = [mailbox = mailbox_, &loop = loop_](Resolved result) {
    const std::lock_guard lock{mailbox->mutex};
    if (!mailbox->open) return;
    boost::asio::post(loop, [weak = std::weak_ptr{mailbox}, result = std::move(result)]() mutable {
      if (const auto there = weak.lock(); there && there->open) there->answer(std::move(result));
    });
  };
  try {
    threads_([deliver, resolver = resolver_, endpoint] { deliver(resolve_name(resolver, endpoint)); });
  } catch (const std::system_error& error) {  // pids.max or nproc: data loaders, say, may have used them up
    deliver({{}, fmt::format("no thread to look up the name \"{}\": {}", endpoint.host, error.what())});
  }
}

}  // namespace elrun::inline v0
