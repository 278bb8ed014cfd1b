// gRPC's threads own nothing here. Each callback posts one letter to the loop, and starts nothing by itself: the next
// read begins when the loop has dealt with the last message, so a node that talks too fast waits in its own socket.

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <vector>

#include <fmt/format.h>
#include <grpc/support/log.h>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "rendezvous.grpc.pb.h"
#include "rendezvous/door.hpp"
#include "rendezvous/grpc.hpp"
#include "rendezvous/grpc_access.hpp"
#include "rendezvous/store_service.hpp"
#include "rendezvous/stream.hpp"

namespace elrun::inline v0 {

void quiet_grpc() {
  static std::once_flag once;
  std::call_once(once, [] {
    // A check of lock orders that the system's library is built with: a sixth of a busy server's time.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
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

  /// On gRPC's thread, which does this for less than the loop could; what was read waits for `open`.
  void start(StreamNumber number) {
    number_ = number;
    StartSendInitialMetadata();  // tells the node that somebody is there
    StartRead(&in_);
  }
  void open(const std::shared_ptr<ServerStream>& self, std::weak_ptr<StreamOwner*> owner) {
    if (owner.expired() || finished_) return finish();
    here_ = self;
    owner_ = std::move(owner);
  }
  /// For good, with a reason that the node understands; instead of `start`, on gRPC's thread.
  void refuse(const std::string& why) {
    context_->AddTrailingMetadata(refusal_metadata, "token");
    Finish({grpc::StatusCode::UNAUTHENTICATED, why});
  }
  /// True until its Join has come, or it has ended.
  [[nodiscard]] bool is_newcomer() const { return !joined_ && !finished_; }
  [[nodiscard]] std::string peer() const { return context_->peer(); }
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
    if (owner && joined_) (*owner)->broken(number_);
  }
  // Only a Join makes a stream one of the round's.
  bool join(const NodeMessage& message) {
    if (joined_) return true;
    const auto owner = owner_.lock();
    const auto self = here_.lock();
    joined_ = owner && self && std::holds_alternative<Join>(message);
    if (joined_) (*owner)->opened(number_, self, false);
    return joined_;
  }
  void read(bool ok) {
    if (!ok) {
      broken();
      return finish();
    }
    const Result<std::optional<NodeMessage>> message = from_wire(in_);
    if (!message.ok() || (*message && !join(**message))) {  // it speaks what no node speaks
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
  std::weak_ptr<ServerStream> here_;
  std::weak_ptr<StreamOwner*> owner_;
  StreamNumber number_{};
  wire::ToCoordinator in_;
  std::deque<wire::ToNode> queue_;  // a deque: the one being written stays where it is
  std::uint64_t queued_ = 0;
  bool joined_ = false, writing_ = false, closing_ = false, finished_ = false;
};

// Streams that have not joined, oldest first: each has its time, and there are not too many of them.
class Newcomers {
 public:
  Newcomers(Loop& loop, const Clock& clock, TurnedAway& turned_away, Duration patience, std::size_t most)
      : loop_{loop}, clock_{clock}, turned_away_{turned_away}, patience_{patience}, most_{most}, timer_{loop} {}

  void add(const std::shared_ptr<ServerStream>& stream) {
    forget_settled();
    if (streams_.size() >= most_) std::erase_if(streams_, [](const auto& s) { return !is_newcomer(s); });
    if (streams_.size() >= most_) end_first("streams that did not join, to make room for others");
    streams_.push_back({stream, clock_.now() + patience_});
    if (streams_.size() == 1) wait();
  }

 private:
  struct Newcomer {
    std::weak_ptr<ServerStream> stream;
    Instant until;
  };
  static bool is_newcomer(const Newcomer& newcomer) {
    const auto stream = newcomer.stream.lock();
    return stream && stream->is_newcomer();
  }
  void forget_settled() {
    while (!streams_.empty() && !is_newcomer(streams_.front())) streams_.pop_front();
  }
  void end_first(std::string_view why) {
    if (const auto stream = streams_.front().stream.lock()) {
      turned_away_.tell(why, stream->peer());
      stream->abort();
    }
    streams_.pop_front();
  }
  void wait() {
    timer_.expires_after(streams_.front().until - clock_.now());
    timer_.async_wait([this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
      if (error || alive.expired()) return;
      // A Join that came in time may still lie in the loop's queue: this letter comes behind it.
      boost::asio::post(loop_, [this, alive] {
        if (!alive.expired()) end_late();
      });
    });
  }
  void end_late() {
    forget_settled();
    const Instant now = clock_.now();
    for (; !streams_.empty() && streams_.front().until <= now; forget_settled()) end_first("streams that did not join");
    if (!streams_.empty()) wait();
  }

  Loop& loop_;
  const Clock& clock_;
  TurnedAway& turned_away_;
  Duration patience_;
  std::size_t most_;
  boost::asio::steady_timer timer_;
  std::deque<Newcomer> streams_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // letters hold it weakly
};

class GrpcServer final : public StreamServer, wire::Rendezvous::CallbackService {
 public:
  GrpcServer(Loop& loop, const Clock& clock, const Log& log, StreamOwner& owner, StreamServerOptions options)
      : loop_{loop},
        clock_{clock},
        options_{std::move(options)},
        turned_away_{log, clock},
        newcomers_{std::make_shared<Newcomers>(loop, clock, turned_away_, options_.patience, options_.waiting_max)},
        owner_{std::make_shared<StreamOwner*>(&owner)},
        store_{make_store_service(loop, owner, [this](const grpc::CallbackServerContext& context) { return refusal_of(context); })} {}
  ~GrpcServer() override {
    door_.reset();
    std::vector<std::weak_ptr<ServerStream>> streams;
    {
      const std::lock_guard lock{mutex_};
      owner_.reset();  // letters that are on their way find nobody
      closed_ = true;
      streams.swap(streams_);
    }
    for (const auto& weak : streams)
      if (const auto stream = weak.lock()) stream->abort();
    store_->close();
    if (server_) server_->Shutdown(std::chrono::system_clock::time_point{});  // long past: at once
    server_.reset();
  }
  Result<void> start(const std::string& address, std::uint16_t port) {
    quiet_grpc();
    ELRUN_TRY_ASSIGN(const Credentials credentials, read_credentials(options_.access));
    ELRUN_TRY_ASSIGN(const auto server_side, server_credentials(options_.access));
    token_ = credentials.token;
    // First of all, for it fails where another is the host already. Nobody comes in before the loop runs again.
    ELRUN_TRY_ASSIGN(door_, Door::open(loop_, clock_, address, port, {credentials.has_tls(), options_.patience, options_.waiting_max}, turned_away_, [this](Fd connection) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.fd = connection.give_up();
      acceptor_->HandleNewConnection(&parameters);
    }));
    const int patience = static_cast<int>(std::max<std::int64_t>(options_.patience / 1ms, 1));
    grpc::ServerBuilder builder;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, server_side);
    builder.RegisterService(this);
    builder.RegisterService(&store_->service());
    builder.SetMaxReceiveMessageSize(static_cast<int>(wire_message_max.value()));
    builder.SetResourceQuota(grpc::ResourceQuota{"rendezvous"}.Resize(options_.memory_max.value()));
    // Few, and no filters that do nothing here: each connection makes each filter anew, which reads all arguments.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, patience);  // TLS, and HTTP/2's first settings
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, patience);       // a connection without a stream
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);  // a host that vanished with bytes still to be written
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);  // nodes may ping as often as they like
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // a ping for each message, to size a window: it is given instead
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, stream_window);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 0);           // streams have none
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);  // nor can a few bytes become many
    builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
    server_ = builder.BuildAndStart();
    if (!server_) return Failure{.code = Code::io, .remedy = Remedy::retry, .what = "gRPC's server did not start"};
    return {};
  }
  [[nodiscard]] std::uint16_t port() const override { return door_->port(); }

 private:
  // On gRPC's threads.
  std::optional<std::string> refusal_of(const grpc::CallbackServerContext& context) {
    auto refusal = token_refusal(token_, shown_token(context));
    if (refusal)
      boost::asio::post(loop_, [this, alive = std::weak_ptr{alive_}, peer = context.peer()] {
        if (!alive.expired()) turned_away_.tell("nodes or clients whose token is missing, wrong or not asked for", peer);
      });
    return refusal;
  }
  grpc::ServerBidiReactor<wire::ToCoordinator, wire::ToNode>* Node(grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<ServerStream>(loop_, context);
    stream->keep(stream);
    const std::lock_guard lock{mutex_};
    if (closed_) {
      stream->abort();
      return stream.get();
    }
    if (const auto refusal = refusal_of(*context)) {
      stream->refuse(*refusal);
      return stream.get();
    }
    if (streams_.size() >= sweep_at_) {  // not at every stream: ten thousand come at once
      std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
      sweep_at_ = 2 * streams_.size() + 16;
    }
    streams_.push_back(stream);
    stream->start((*owner_)->number_stream());
    boost::asio::post(loop_, [stream, owner = std::weak_ptr{owner_}, newcomers = std::weak_ptr{newcomers_}] {
      if (const auto here = newcomers.lock()) here->add(stream);
      stream->open(stream, owner);
    });
    return stream.get();
  }
  static std::string_view shown_token(const grpc::CallbackServerContext& context) {
    const auto found = context.client_metadata().find(token_metadata);
    return found == context.client_metadata().end() ? std::string_view{} : std::string_view{found->second.data(), found->second.size()};
  }

  Loop& loop_;
  const Clock& clock_;
  const StreamServerOptions options_;
  Secret token_;
  TurnedAway turned_away_;
  std::shared_ptr<Newcomers> newcomers_;
  std::mutex mutex_;                     // of the four below, which gRPC's threads use as well
  std::shared_ptr<StreamOwner*> owner_;  // streams and letters hold it weakly
  std::vector<std::weak_ptr<ServerStream>> streams_;
  std::size_t sweep_at_ = 16;            // when so many are listed, those that ended go from the list
  bool closed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // letters about strangers hold it weakly
  std::unique_ptr<StoreService> store_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Door> door_;
};

}  // namespace

Result<std::unique_ptr<StreamServer>> start_stream_server(Loop& loop, const Clock& clock, const Log& log, StreamOwner& owner, const std::string& address,
                                                          std::uint16_t port, StreamServerOptions options) {
  auto server = std::make_unique<GrpcServer>(loop, clock, log, owner, std::move(options));
  ELRUN_TRY(server->start(address, port));
  return std::unique_ptr<StreamServer>{std::move(server)};
}

}  // namespace elrun::inline v0
