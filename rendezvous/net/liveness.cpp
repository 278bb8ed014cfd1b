#include "rendezvous/net/liveness.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>

#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

std::optional<LivenessPort> LivenessPorts::at(const std::string& address) {
  if (const auto held = held_.find(address); held != held_.end()) return held->second.port;
  const std::optional<SocketAddress> where = literal_address(address, 0);
  if (!where || held_.size() >= liveness_ports_max) return {};
  auto socket = listen_on(*where);
  if (!socket.ok() || ::listen(socket->get(), liveness_backlog) != 0) return {};
  const LivenessPort port{address, local_address(socket->get()).port()};
  held_.emplace(address, Held{std::move(*socket), port});
  return port;
}

// One connection. Its callbacks hold it, so it lives until the last of them.
class LivenessQuestions::Question : public std::enable_shared_from_this<Question> {
 public:
  Question(boost::asio::io_context& loop, Fd socket, const SocketAddress& to, std::weak_ptr<std::size_t> asked, std::function<void()> ended)
      : to_{to}, asked_{std::move(asked)}, ended_{std::move(ended)}, socket_{adopt(loop, std::move(socket), to.family())}, timer_{loop} {
    if (const auto counted = asked_.lock()) ++*counted;
  }
  ~Question() {
    if (const auto asked = asked_.lock()) --*asked;
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  void begin(Duration patience) {
    timer_.expires_after(patience);
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code&) { self->close(); });
    socket_.async_wait(StreamSocket::wait_write, [self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->connected();
    });
  }

 private:
  void connected() {
    // Before anything else, for reading it clears it.
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(socket_.native_handle(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error == ECONNREFUSED || error == ECONNRESET) return process_has_ended();
    if (error != 0) return over();
    if (!connect_result(socket_.native_handle(), to_).ok()) return process_has_ended();  // it has connected to itself: nobody listens there
    socket_.async_wait(StreamSocket::wait_read, [self = shared_from_this()](const boost::system::error_code& failed) {
      if (!failed) self->readable();
    });
  }
  // The system resets what waits at a port when that closes. What is ended in order or sends something is another program's.
  void readable() {
    char byte = 0;
    if (::recv(socket_.native_handle(), &byte, 1, MSG_DONTWAIT) < 0 && errno == ECONNRESET) return process_has_ended();
    over();
  }
  void process_has_ended() {
    if (!asked_.expired()) ended_();
    over();
  }
  void over() {
    timer_.cancel();
    close();
  }
  void close() {
    boost::system::error_code ignored;
    (void)socket_.close(ignored);
  }

  const SocketAddress to_;
  const std::weak_ptr<std::size_t> asked_;
  const std::function<void()> ended_;
  StreamSocket socket_;
  boost::asio::steady_timer timer_;
};

void LivenessQuestions::ask(const LivenessPort& port, std::function<void()> ended) {
  const std::optional<SocketAddress> to = literal_address(port.address, port.port);
  if (!to || *under_way_ >= liveness_questions_max) return;
  Fd socket{::socket(to->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket) return;
  const bool begun = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to->storage), to->size) == 0 || errno == EINPROGRESS;
  if (!begun && errno == ECONNREFUSED)  // a port of this host, mostly
    return boost::asio::post(loop_, [asked = std::weak_ptr{under_way_}, ended = std::move(ended)] {
      if (!asked.expired()) ended();
    });
  if (!begun) return;
  try {
    const auto question = std::make_shared<Question>(loop_, std::move(socket), *to, under_way_, std::move(ended));
    question->begin(patience_);
  } catch (const boost::system::system_error&) {  // the system watches no more sockets: no answer
  }
}

}  // namespace elrun::inline v0
