#pragma once
/// \file Streams of a gRPC server as the loop sees them: bytes in, bytes out, and one thread behind, which owns nothing.

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <boost/asio/io_context.hpp>

namespace elrun::inline v0 {

/// An operation that gRPC was asked for. Its address does not change until gRPC has finished it.
class GrpcOperation {
 public:
  virtual void finished(bool ok) = 0;

 protected:
  ~GrpcOperation() = default;
};

/// One that tells its owner.
template <class Owner, void (Owner::*tell)(bool)>
class OperationOf final : public GrpcOperation {
 public:
  explicit OperationOf(Owner& owner) : owner_{owner} {}
  void finished(bool ok) override { (owner_.*tell)(ok); }

 private:
  Owner& owner_;
};

/// Carries what gRPC has finished to the loop. All that finished since the loop last looked is one posted task.
class GrpcEvents {
 public:
  GrpcEvents(boost::asio::io_context& loop, std::unique_ptr<grpc::ServerCompletionQueue> queue);
  GrpcEvents(const GrpcEvents&) = delete;
  GrpcEvents& operator=(const GrpcEvents&) = delete;
  ~GrpcEvents() { close(); }
  /// After the server was shut down: every operation is finished here, and no other begins.
  void close();
  [[nodiscard]] grpc::ServerCompletionQueue& queue() { return *queue_; }
  /// Expired: gRPC takes nothing more.
  [[nodiscard]] std::weak_ptr<void> open() const { return open_; }

 private:
  struct Event {
    GrpcOperation* operation;
    bool ok;
  };
  void carry(const std::weak_ptr<void>& open);
  std::size_t hand_over(const std::vector<Event>& events, const std::weak_ptr<void>& open);
  void deliver();
  void take_what_came();
  void finish_first();

  boost::asio::io_context& loop_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::shared_ptr<bool> open_ = std::make_shared<bool>(true);  // posted tasks hold it weakly
  std::mutex mutex_;                                           // of what came, to which the thread adds
  std::vector<Event> came_;
  std::deque<Event> due_;  // the loop's own
  std::thread thread_;
};

/// A call as gRPC hands it over.
struct GrpcCall {
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter line{&context};
};

template <class Message>
[[nodiscard]] grpc::ByteBuffer to_bytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  (void)grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);  // into memory: it cannot fail
  return bytes;
}

/// False when they are no such message. They are used up.
template <class Message>
[[nodiscard]] bool read_bytes(grpc::ByteBuffer& bytes, Message& message) {
  return grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok();
}

/// The server's end of one call. It lives until gRPC is done with it. Loop thread only.
class GrpcStream : public std::enable_shared_from_this<GrpcStream> {
 public:
  GrpcStream(std::unique_ptr<GrpcCall> call, std::weak_ptr<void> open) : call_{std::move(call)}, open_{std::move(open)} {}
  virtual ~GrpcStream() = default;
  /// Accepts the call: sends the initial metadata, and reads. Once, and instead of `finish`.
  void start();
  /// Completes the write in progress, then ends the call. Reads no more.
  void finish(const grpc::Status& status = grpc::Status::OK);
  /// At once, whatever is being written.
  void abort();
  [[nodiscard]] bool is_finished() const { return finished_; }
  [[nodiscard]] std::string peer() const { return call_ ? call_->context.peer() : ""; }

 protected:
  /// The next message is read when this returns.
  virtual void received(grpc::ByteBuffer& message) = 0;
  /// Nothing more will be received. It may come twice.
  virtual void broken() = 0;
  /// The next message may be written.
  virtual void written() = 0;
  /// One at a time.
  void write(const grpc::ByteBuffer& message);
  [[nodiscard]] bool is_writing() const { return writing_; }

 private:
  template <class Begin>
  void begin(Begin operation);
  void end_of_operation();
  void read();
  void after_greeting(bool ok);
  void after_read(bool ok);
  void after_write(bool ok);
  void after_finish(bool ok);

  std::unique_ptr<GrpcCall> call_;
  std::weak_ptr<void> open_;
  std::shared_ptr<GrpcStream> self_;  // while gRPC has operations of it
  int operations_ = 0;
  bool writing_ = false, finished_ = false;
  grpc::Status status_;
  grpc::ByteBuffer in_;
  OperationOf<GrpcStream, &GrpcStream::after_greeting> greeting_{*this};
  OperationOf<GrpcStream, &GrpcStream::after_read> reading_{*this};
  OperationOf<GrpcStream, &GrpcStream::after_write> write_{*this};
  OperationOf<GrpcStream, &GrpcStream::after_finish> end_{*this};
};

/// Ends a call that has not begun.
void refuse(std::unique_ptr<GrpcCall> call, std::weak_ptr<void> open, const grpc::Status& why);

}  // namespace elrun::inline v0
