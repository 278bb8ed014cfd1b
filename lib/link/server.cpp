#include "lib/link/server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <map>
#include <span>
#include <vector>

#include <fmt/format.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "lib/link/message_stream.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr std::size_t connections_max = 65536;
constexpr Duration accept_pause = 100ms;  // without a free descriptor the listener stays readable: do not spin on it

class Server final : public WorkerServer {
 public:
  Server(asio::io_context& loop, std::vector<Fd> listeners, MessageStream::Limits limits, Handler handler)
      : loop_{loop}, limits_{limits}, handler_{std::move(handler)} {
    for (Fd& listener : listeners) accept(listeners_.emplace_back(loop, std::move(listener)));
  }
  ~Server() override {
    for (auto& [number, stream] : streams_) stream->drop();
    for (const Listener& at : listeners_)
      if (at.address.family() == AF_UNIX) (void)::unlink(at.address.host().c_str());
  }
  Result<void> listen_also(const Path& socket) override {
    ELRUN_TRY_ASSIGN(const SocketAddress address, unix_address(socket));
    ELRUN_TRY_ASSIGN(Fd listener, listen_on(address));
    accept(listeners_.emplace_back(loop_, std::move(listener)));
    return {};
  }

  void send(Connection to, const Message& message) override {
    if (const auto at = streams_.find(to); at != streams_.end()) at->second->send(message);
  }
  [[nodiscard]] bool is_loopback() const override {
    return std::ranges::all_of(listeners_, [](const Listener& at) { return at.address.is_loopback(); });
  }
  void expect(Connection connection) override { unauthenticated_.erase(connection); }
  void trust(Connection connection) override {
    unauthenticated_.erase(connection);
    if (const auto at = streams_.find(connection); at != streams_.end()) at->second->trust();
  }
  /// One that was not accepted counts until it has ended: its other end decides how long it reads its last frames.
  void close(Connection connection) override {
    auto node = streams_.extract(connection);
    if (!node) return;
    if (!unauthenticated_.contains(connection)) return node.mapped()->finish();
    node.mapped()->finish([this, connection, alive = std::weak_ptr{alive_}] {
      if (!alive.expired()) unauthenticated_.erase(connection);
    });
  }
  [[nodiscard]] std::string peer(Connection connection) const override {
    const auto at = unauthenticated_.find(connection);
    return at == unauthenticated_.end() ? std::string{} : at->second.peer;
  }
  [[nodiscard]] std::uint16_t port() const override { return address().port(); }

 private:
  struct Unauthenticated {
    asio::steady_timer::time_point turn_ends;
    std::shared_ptr<MessageStream> stream;
    std::string peer;
  };

  struct Listener {
    Listener(asio::io_context& loop, Fd listener) : address{local_address(listener.get())}, socket{loop, listener.give_up()}, pause{loop} {}
    const SocketAddress address;
    asio::posix::stream_descriptor socket;
    asio::steady_timer pause;
  };
  /// The first one.
  [[nodiscard]] const SocketAddress& address() const { return listeners_.front().address; }

  void accept(Listener& at) {
    at.socket.async_wait(asio::posix::stream_descriptor::wait_read, [this, &at, alive = std::weak_ptr{alive_}](const ErrorCode& error) {
      if (alive.expired() || error) return;
      for (;;) {
        if (unauthenticated_.size() >= unauthenticated_max && !make_room()) return accept_later(at);
        auto accepted = accept_one(at.socket.native_handle());
        if (!accepted.ok()) return accept_later(at);
        if (!*accepted) return accept(at);
        admit(std::move(**accepted));
      }
    });
  }
  // The oldest one, if it has had its turn.
  bool make_room() {
    const auto oldest = unauthenticated_.begin();
    if (asio::steady_timer::clock_type::now() < oldest->second.turn_ends) return false;
    oldest->second.stream->drop();
    streams_.erase(oldest->first);
    unauthenticated_.erase(oldest);
    return true;
  }
  void accept_later(Listener& at) {
    at.pause.expires_after(accept_pause);
    at.pause.async_wait([this, &at, alive = std::weak_ptr{alive_}](const ErrorCode& error) {
      if (!alive.expired() && !error) accept(at);
    });
  }

  void admit(Fd socket) {
    if (streams_.size() >= connections_max) return;
    std::uint64_t pid = 0;
    if (address().family() == AF_UNIX) {
      ucred peer{};
      socklen_t size = sizeof peer;
      if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid()) return;
      pid = static_cast<std::uint64_t>(peer.pid);
    } else {
      set_no_delay(socket.get());
    }
    std::string peer = to_string(peer_address(socket.get()));
    const Connection number = ++last_;
    const auto stream = std::make_shared<MessageStream>(
        adopt(loop_, std::move(socket), address().family()), limits_,
        MessageStream::Handler{[this, number, pid](const Message& message) { on_message(number, pid, message); },
                               [this, number](const Failure& why) {
                                 streams_.erase(number);
                                 unauthenticated_.erase(number);
                                 handler_.closed(number, why);
                               }});
    streams_.emplace(number, stream);
    if (address().family() != AF_UNIX)
      unauthenticated_.emplace(number,
                               Unauthenticated{asio::steady_timer::clock_type::now() + unauthenticated_turn, stream, std::move(peer)});
    stream->start();
  }

  void on_message(Connection from, std::uint64_t pid, const Message& message) {
    if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && pid != 0) {
      Hello checked = *hello;
      checked.pid = pid;  // the kernel's word, not the worker's
      return handler_.message(from, checked);
    }
    handler_.message(from, message);
  }

  asio::io_context& loop_;
  std::list<Listener> listeners_;
  MessageStream::Limits limits_;
  Handler handler_;
  std::map<Connection, std::shared_ptr<MessageStream>> streams_;
  std::map<Connection, Unauthenticated> unauthenticated_;  // open, or closed here and not yet there
  Connection last_ = 0;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  // posted tasks in the loop's queue outlive this object
};

}  // namespace

Result<std::unique_ptr<WorkerServer>> WorkerServer::listen_unix(asio::io_context& loop, const Path& socket, Handler handler) {
  ELRUN_TRY_ASSIGN(const SocketAddress address, unix_address(socket));
  std::vector<Fd> listeners(1);
  ELRUN_TRY_ASSIGN(listeners[0], listen_on(address));
  return std::unique_ptr<WorkerServer>{std::make_unique<Server>(loop, std::move(listeners), MessageStream::Limits{}, std::move(handler))};
}

Result<std::unique_ptr<WorkerServer>> WorkerServer::listen_tcp(asio::io_context& loop, const std::vector<SocketAddress>& addresses,
                                                               Handler handler) {
  std::vector<Fd> listeners(1);
  ELRUN_TRY_ASSIGN(listeners[0], listen_on(addresses.front(), NotOwn::any_of_it));
  for (const SocketAddress& other :
       std::span{addresses}.subspan(1))  // one that is not this host's, or that the first one covers, is none to listen at
    if (auto listener = listen_on(other); listener.ok()) listeners.push_back(std::move(*listener));
  const MessageStream::Limits limits{.silence = tcp_silence_max, .frame = unauthenticated_message_max};
  return std::unique_ptr<WorkerServer>{std::make_unique<Server>(loop, std::move(listeners), limits, std::move(handler))};
}

}  // namespace elrun::inline v0
