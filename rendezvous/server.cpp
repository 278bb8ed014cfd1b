// gRPC's threads own nothing here. Each callback posts one letter to the loop, and starts nothing by itself: the next
// read begins when the loop has dealt with the last message, so a node that talks too fast waits in its own socket.

#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>

#include <cerrno>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <vector>

#include <fmt/format.h>
#include <grpc/support/log.h>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "rendezvous.grpc.pb.h"
#include "rendezvous/grpc.hpp"
#include "rendezvous/stream.hpp"

namespace elrun::inline v0 {

void quiet_grpc() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  });
}

namespace {

using Loop = boost::asio::io_context;

// One stream: made by a gRPC thread, used by the loop alone from then on.
class ServerStream final : public grpc::ServerBidiReactor<wire::ToCoordinator, wire::ToNode>, public StreamEnd {
 public:
  ServerStream(Loop& loop, grpc::CallbackServerContext* context) : loop_{loop}, context_{context} {}
  void keep(std::shared_ptr<ServerStream> self) { self_ = std::move(self); }

  void open(const std::shared_ptr<ServerStream>& self, std::weak_ptr<StreamOwner*> owner) {
    const auto alive = owner.lock();
    if (!alive || finished_) return finish();
    owner_ = std::move(owner);
    number_ = (*alive)->opened(self, false);
    StartSendInitialMetadata();  // tells the node that somebody is there
    StartRead(&in_);
  }
  void send(const CoordinatorMessage& message) override {
    if (closing_ || finished_) return;
    wire::ToNode out;
    to_wire(message, out);
    queued_ += out.ByteSizeLong();
    if (queued_ > stream_queue_max.value()) return abort();  // the read that fails says that the stream is broken
    queue_.push_back(std::move(out));
    write();
  }
  void close() override {
    closing_ = true;
    owner_.reset();
    write();
  }
  /// At once, whatever is still to be written.
  void abort() {
    if (finished_) return;
    context_->TryCancel();
    finish();
  }

 private:
  void write() {
    if (writing_ || finished_) return;
    if (queue_.empty()) return closing_ ? finish() : void();
    writing_ = true;
    StartWrite(&queue_.front());
  }
  void finish() {
    if (finished_) return;
    finished_ = true;
    Finish(grpc::Status::OK);
  }
  void broken() {
    const auto owner = std::exchange(owner_, {}).lock();
    if (owner) (*owner)->broken(number_);
  }
  void read(bool ok) {
    if (!ok) {
      broken();
      return finish();
    }
    const Result<std::optional<NodeMessage>> message = from_wire(in_);
    if (!message.ok()) {  // it speaks what no node speaks
      broken();
      return abort();
    }
    if (const auto owner = owner_.lock(); owner && *message) (*owner)->received(number_, **message);
    if (finished_) return;
    StartRead(&in_);
  }
  void written(bool ok) {
    writing_ = false;
    queued_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (ok) write();
    else finish();
  }

  // gRPC's threads: they read `loop_` and `self_`, which the loop leaves alone.
  void OnReadDone(bool ok) override {
    boost::asio::post(loop_, [self = self_, ok] { self->read(ok); });
  }
  void OnWriteDone(bool ok) override {
    boost::asio::post(loop_, [self = self_, ok] { self->written(ok); });
  }
  void OnDone() override {
    boost::asio::post(loop_, [self = std::move(self_)] { self->broken(); });
  }

  Loop& loop_;
  grpc::CallbackServerContext* context_;
  std::shared_ptr<ServerStream> self_;  // until gRPC is done with it
  std::weak_ptr<StreamOwner*> owner_;
  StreamNumber number_{};
  wire::ToCoordinator in_;
  std::deque<wire::ToNode> queue_;  // a deque: the one being written stays where it is
  std::uint64_t queued_ = 0;
  bool writing_ = false, closing_ = false, finished_ = false;
};

class GrpcServer final : public StreamServer, wire::Rendezvous::CallbackService {
 public:
  GrpcServer(Loop& loop, StreamOwner& owner) : loop_{loop}, owner_{std::make_shared<StreamOwner*>(&owner)} {}
  ~GrpcServer() override {
    owner_.reset();  // letters that are on their way find nobody
    std::vector<std::weak_ptr<ServerStream>> streams;
    {
      const std::lock_guard lock{mutex_};
      closed_ = true;
      streams.swap(streams_);
    }
    for (const auto& weak : streams)
      if (const auto stream = weak.lock()) stream->abort();
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  Result<std::uint16_t> start(const std::string& address, std::uint16_t port) {
    quiet_grpc();
    grpc::ServerBuilder builder;
    const bool six = address.find(':') != std::string::npos;
    int bound = 0;
    builder.AddListeningPort(fmt::format(fmt::runtime(six ? "[{}]:{}" : "{}:{}"), address.empty() ? "[::]" : address, port),
                             grpc::InsecureServerCredentials(), &bound);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(static_cast<int>(wire_message_max.value()));
    builder.SetMaxSendMessageSize(static_cast<int>(wire_message_max.value()));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port that is taken is an error, not shared
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);  // a host that vanished with bytes still to be written
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    server_ = builder.BuildAndStart();
    if (!server_ || bound == 0) {
      server_.reset();
      return why_not(address, port);
    }
    port_ = static_cast<std::uint16_t>(bound);
    return port_;
  }
  [[nodiscard]] std::uint16_t port() const override { return port_; }

 private:
  // gRPC does not say why it could not listen; the system does when it is asked the same.
  static Failure why_not(const std::string& address, std::uint16_t port) {
    const std::string what = fmt::format("listen on {} port {}", address.empty() ? "all addresses" : address, port);
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST;
    if (::getaddrinfo(address.empty() ? nullptr : address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
      return {.code = Code::invalid_argument, .remedy = Remedy::fix_config, .what = what + ": the address is none of this machine's"};
    const Fd socket{::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const int one = 1;
    if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const bool bound = socket && ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0 && ::listen(socket.get(), 1) == 0;
    const int error = errno;
    ::freeaddrinfo(found);
    if (bound) return {.code = Code::io, .remedy = Remedy::retry, .what = what + " failed"};
    return error == EADDRINUSE ? Failure{.code = Code::already_exists, .remedy = Remedy::fix_config, .what = what + ": somebody listens there already"}
                               : from_errno(error, what);
  }

  grpc::ServerBidiReactor<wire::ToCoordinator, wire::ToNode>* Node(grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<ServerStream>(loop_, context);
    stream->keep(stream);
    const std::lock_guard lock{mutex_};
    if (closed_) {
      stream->abort();
      return stream.get();
    }
    std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
    streams_.push_back(stream);
    boost::asio::post(loop_, [stream, owner = std::weak_ptr{owner_}] { stream->open(stream, owner); });
    return stream.get();
  }

  Loop& loop_;
  std::shared_ptr<StreamOwner*> owner_;  // streams and letters hold it weakly
  std::mutex mutex_;                     // of the two below, which gRPC's threads use as well
  std::vector<std::weak_ptr<ServerStream>> streams_;
  bool closed_ = false;
  std::unique_ptr<grpc::Server> server_;
  std::uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<StreamServer>> start_stream_server(Loop& loop, StreamOwner& owner, const std::string& address, std::uint16_t port) {
  auto server = std::make_unique<GrpcServer>(loop, owner);
  ELRUN_TRY(server->start(address, port));
  return std::unique_ptr<StreamServer>{std::move(server)};
}

}  // namespace elrun::inline v0
