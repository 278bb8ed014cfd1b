#include "lib/link/message_stream.hpp"

#include <utility>

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr std::size_t chunk_size = 65536, unauthenticated_chunk_size = 2048;
constexpr Duration linger = 2s;  // for a peer that does not read its last frames

Failure gone(const ErrorCode& error) {
  if (error == asio::error::eof) return {Code::peer_lost, Remedy::rejoin, "the connection was closed by the other end"};
  return from_errno(error.value(), "the connection broke");
}

}  // namespace

MessageStream::MessageStream(StreamSocket socket, Limits limits, Handler handler)
    : socket_{std::move(socket)},
      limit_{socket_.get_executor()},
      limits_{limits},
      handler_{std::move(handler)},
      chunk_(limits.frame < message_max ? unauthenticated_chunk_size : chunk_size) {
  reader_.allow(limits_.frame);
}

void MessageStream::start() {
  listen_for(limits_.first_message);
  read();
}

void MessageStream::read() {
  if (limits_.frame == message_max) chunk_.resize(chunk_size);  // nothing of it is in use
  socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](const ErrorCode& error, std::size_t count) {
    if (self->state_ == State::closed) return;
    if (error) return self->fail(gone(error));
    self->on_bytes(count);
  });
}

void MessageStream::on_bytes(std::size_t count) {
  if (state_ == State::open) {
    if (heard_) listen_for(limits_.silence);  // a large message takes its time, and what says Alive waits behind it
    reader_.feed(ByteSpan{chunk_}.first(count));
    while (state_ == State::open) {  // a handler may end it
      const auto message = reader_.next();
      if (!message.ok()) return fail(message.failure());
      if (!*message) break;
      if (!std::exchange(heard_, true)) listen_for(limits_.silence);
      handler_.message(**message);
    }
  }
  if (state_ != State::closed) read();  // when finishing, to see the end: closing with bytes unread would reset our last frames
}

void MessageStream::trust() {
  limits_.frame = message_max;
  reader_.allow(message_max);
}

void MessageStream::send(const Message& message) {
  if (state_ != State::open || deaf_) return;
  queue_.push_back(encode(message));
  queued_ += queue_.back().size();
  if (queued_ > limits_.queue.value()) {
    return asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->fail({Code::exhausted, Remedy::rejoin,
                  fmt::format("the other end does not read: more than {} bytes wait for it", self->limits_.queue.value())});
    });
  }
  if (!writing_) write();
}

void MessageStream::write() {
  writing_ = true;
  asio::async_write(socket_, asio::buffer(queue_.front()), [self = shared_from_this()](const ErrorCode& error, std::size_t) {
    self->writing_ = false;
    if (self->state_ == State::closed) return;
    if (error) {  // the read side tells what happened, after the last frames that the other end has sent
      self->deaf_ = true;
      return self->queue_.clear();
    }
    self->queued_ -= self->queue_.front().size();
    self->queue_.pop_front();
    if (!self->queue_.empty()) return self->write();
    ErrorCode ignored;
    if (self->state_ == State::finishing) self->socket_.shutdown(StreamSocket::shutdown_send, ignored);
  });
}

void MessageStream::finish(std::function<void()> ended) {
  if (state_ != State::open) return;
  state_ = State::finishing;
  ended_ = std::move(ended);
  listen_for(linger);
  ErrorCode ignored;
  if (!writing_) socket_.shutdown(StreamSocket::shutdown_send, ignored);
}

void MessageStream::drop() {
  state_ = State::closed;
  ErrorCode ignored;
  // A forked child may hold a copy of the descriptor: closed alone, the connection would live on.
  socket_.shutdown(StreamSocket::shutdown_both, ignored);
  socket_.close(ignored);
  limit_.cancel();
}

void MessageStream::listen_for(Duration limit) {
  if (limit == Duration{0}) return void(limit_.cancel());
  limit_.expires_after(limit);
  limit_.async_wait([self = shared_from_this(), limit](const ErrorCode& error) {
    // A timer that had expired when it was set anew still calls: its time is over only if no later one stands.
    if (error || self->state_ == State::closed || self->limit_.expiry() > asio::steady_timer::clock_type::now()) return;
    self->fail({Code::peer_lost, Remedy::rejoin, fmt::format("nothing was heard for {} ms", limit / 1ms)});
  });
}

void MessageStream::fail(Failure failure) {
  const bool tell = state_ == State::open;
  if (state_ == State::closed) return;
  const auto ended = std::exchange(ended_, {});
  drop();
  if (tell) handler_.closed(failure);
  if (ended) ended();
}

}  // namespace elrun::inline v0
