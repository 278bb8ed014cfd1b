#pragma once
/// \file MessageStream: one connection of the worker protocol on a loop, either end of it.

#include <deque>
#include <functional>
#include <memory>

#include <boost/asio/steady_timer.hpp>

#include "lib/link/message.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

/// Lives on the loop's one thread. Handlers run there, and never inside a call of this class.
class MessageStream : public std::enable_shared_from_this<MessageStream> {
 public:
  struct Handler {
    std::function<void(const Message&)> message;
    std::function<void(const Failure&)> closed;  ///< Once, last: the other end is gone, silent or broken.
  };
  struct Limits {
    Bytes queue = 128_MiB;           ///< Beyond it the other end does not read, and the connection is closed.
    Duration first_message = 10s;    ///< Whoever connects says something within this.
    Duration silence = Duration{0};  ///< After that, not a byte for this long is a loss; zero: never.
    Bytes frame = message_max;       ///< A longer one ends the connection, until `trust`.
  };
  MessageStream(StreamSocket socket, Limits limits, Handler handler);
  /// Begins to read.
  void start();
  void send(const Message& message);
  /// Frames may have up to `message_max` from now on.
  void trust();
  /// Sends what is queued, then closes. No handler runs any more. `ended`: the other end has closed, or did not within 2 s, and this one is
  /// closed, too. Not after `drop`.
  void finish(std::function<void()> ended = {});
  /// Closes now. No handler runs any more.
  void drop();

 private:
  void read();
  void on_bytes(std::size_t count);
  void write();
  void listen_for(Duration limit);
  void fail(Failure failure);

  StreamSocket socket_;
  boost::asio::steady_timer limit_;
  Limits limits_;
  Handler handler_;
  std::function<void()> ended_;
  MessageReader reader_;
  ByteVector chunk_;  // what is read at one time
  std::deque<ByteVector> queue_;
  std::uint64_t queued_ = 0;
  enum class State { open, finishing, closed } state_ = State::open;
  bool heard_ = false;  ///< Its first message has come.
  bool writing_ = false;
  bool deaf_ = false;  ///< The other end takes no more bytes.
};

}  // namespace elrun::inline v0
