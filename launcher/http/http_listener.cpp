#include "launcher/http/http_listener.hpp"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <string>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

namespace elrun::inline v0::launcher {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr Duration accept_pause = 100ms;  // without a free descriptor the listener stays readable: do not spin on it

constexpr int accepts_per_turn = 64;  // then others on the loop have theirs

std::size_t connections_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return http_connections_max;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, 16, http_connections_max);
}

// A visitor that has asked by the time it is taken in gets its answer in the same moment, which costs it no timer, no place and
// no turn of the loop. That holds for nearly all probes, and for all who went away again. What was read of others is in `head`.
bool is_done_at_once(int socket, const HttpListener::Answer& answer, std::string& head) {
  std::array<char, 2048> chunk;
  while (true) {
    const ssize_t size = ::recv(socket, chunk.data(), chunk.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size == 0 && !head.empty()) break;  // it has said all that it wants to say, and may wait for the answer
    if (size <= 0) return true;
    head.append(chunk.data(), static_cast<std::size_t>(size));
    if (head.size() > http_request_max.value()) return false;
  }
  if (head.empty() || end_of_head(head, 0) != head.size()) return false;  // with unread bytes behind it a close would take the reply back
  const auto request = read_request(head);
  const auto* asked = std::get_if<HttpRequest>(&request);
  if (asked == nullptr) return false;
  const std::string reply = encode(answer(*asked), asked->wants_body);
  int room = 0;
  socklen_t room_size = sizeof room;
  if (::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, &room_size) != 0 || reply.size() * 2 > static_cast<std::size_t>(room))
    return false;
  return ::send(socket, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

// One connection: a head is read, a reply written, and what else comes is read away, since closing with unread bytes
// would take the reply back. Whatever it does ends with the limit.
class Visit : public std::enable_shared_from_this<Visit> {
 public:
  /// `head`: what was read of it before.
  Visit(StreamSocket socket, std::string head, const HttpListener::Answer& answer, std::function<void(Visit*)> over)
      : socket_{std::move(socket)}, limit_{socket_.get_executor()}, answer_{answer}, over_{std::move(over)}, head_{std::move(head)} {}

  void start() {
    limit_.expires_after(http_time_max);
    limit_.async_wait([self = shared_from_this()](const ErrorCode& error) {
      if (!error) self->close();
    });
    if (head_.empty()) read();
    else on_head(0);
  }

  // No handler runs any more that touches anybody else.
  void close() {
    if (!over_) return;
    ErrorCode ignored;
    socket_.close(ignored);
    limit_.cancel();
    std::exchange(over_, nullptr)(this);
  }
  void drop() {
    over_ = [](Visit*) {};
    close();
  }

 private:
  void read() {
    socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](const ErrorCode& error, std::size_t count) {
      if (self->over_ == nullptr) return;
      if (error) return self->close();
      self->on_bytes(count);
    });
  }

  void on_bytes(std::size_t count) {
    if (!reply_.empty()) return read();  // after the request; it is not asked for
    const std::size_t looked_at = head_.size();
    head_.append(chunk_.data(), count);
    on_head(looked_at);
  }
  void on_head(std::size_t looked_at) {
    const std::size_t end = end_of_head(head_, looked_at);
    if (end == 0 && head_.size() <= http_request_max.value()) return read();
    const auto request = read_request(std::string_view{head_}.substr(0, end == 0 ? head_.size() : end));
    if (const auto* asked = std::get_if<HttpRequest>(&request)) reply_ = encode(answer_(*asked), asked->wants_body);
    else reply_ = encode(std::get<HttpReply>(request), true);
    asio::async_write(socket_, asio::buffer(reply_), [self = shared_from_this()](const ErrorCode& error, std::size_t) {
      if (self->over_ == nullptr) return;
      if (error) return self->close();
      ErrorCode ignored;
      self->socket_.shutdown(StreamSocket::shutdown_send, ignored);
      self->read();
    });
  }

  StreamSocket socket_;
  asio::steady_timer limit_;
  const HttpListener::Answer& answer_;
  std::function<void(Visit*)> over_;  // none: closed
  std::array<char, 2048> chunk_{};
  std::string head_, reply_;
};

class Listener final : public HttpListener {
 public:
  Listener(asio::io_context& loop, Fd listener, const SocketAddress& address, Answer answer)
      : loop_{loop}, listener_{loop, listener.give_up()}, pause_{loop}, address_{address}, answer_{std::move(answer)} {
    accept();
  }
  ~Listener() override {
    for (const auto& visit : visits_) visit->drop();
  }
  [[nodiscard]] const SocketAddress& address() const override { return address_; }

 private:
  void accept() {
    listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this, alive = std::weak_ptr{alive_}](const ErrorCode& error) {
      if (alive.expired() || error) return;
      for (int i = 0; i < accepts_per_turn; ++i) {
        auto accepted = accept_one(listener_.native_handle());
        if (!accepted.ok()) return accept_later();
        if (!*accepted) break;
        admit(std::move(**accepted));
        if (alive.expired()) return;  // an answer was the end of this
      }
      accept();
    });
  }
  void accept_later() {
    pause_.expires_after(accept_pause);
    pause_.async_wait([this, alive = std::weak_ptr{alive_}](const ErrorCode& error) {
      if (!alive.expired() && !error) accept();
    });
  }

  void admit(Fd socket) {
    std::string head;
    if (is_done_at_once(socket.get(), answer_, head)) return;
    if (visits_.size() >= most_) std::shared_ptr {
        visits_.front()
        } -> close();
    auto visit = std::make_shared<Visit>(adopt(loop_, std::move(socket), address_.family()), std::move(head), answer_,
                                         [this](Visit* over) { visits_.remove_if([over](const auto& v) { return v.get() == over; }); });
    visits_.push_back(visit);
    visit->start();
  }

  asio::io_context& loop_;
  asio::posix::stream_descriptor listener_;
  asio::steady_timer pause_;
  SocketAddress address_;
  Answer answer_;
  std::list<std::shared_ptr<Visit>> visits_;  // the oldest first
  const std::size_t most_ = connections_max();
  std::shared_ptr<char> alive_ = std::make_shared<char>();  // tasks posted to the loop outlive this object
};

}  // namespace

Result<std::unique_ptr<HttpListener>> HttpListener::open(asio::io_context& loop, const SocketAddress& address, Answer answer) {
  ELRUN_TRY_ASSIGN(Fd listener, listen_on(address));
  SocketAddress bound = address;
  if (address.family() != AF_UNIX) bound = local_address(listener.get());
  return std::unique_ptr<HttpListener>{std::make_unique<Listener>(loop, std::move(listener), bound, std::move(answer))};
}

}  // namespace elrun::inline v0::launcher
