// All of this runs on the loop. The next message of a node is read when its last one was handled, so a node that sends too fast waits in
// its own socket.

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <grpc/support/log.h>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/quiet_thread.hpp"
#include "rendezvous.grpc.pb.h"
#include "rendezvous/net/acceptor.hpp"
#include "rendezvous/net/grpc.hpp"
#include "rendezvous/net/grpc_access.hpp"
#include "rendezvous/net/grpc_stream.hpp"
#include "rendezvous/net/stream.hpp"
#include "rendezvous/store/store_service.hpp"

namespace elrun::inline v0 {

void quiet_grpc() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Abseil's check of lock orders, which the system's library is built with, took a sixth of a busy server's time.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  });
}

namespace {

using Loop = boost::asio::io_context;

const std::string node_method = fmt::format("/{}/Node", wire::Rendezvous::service_full_name());
constexpr std::size_t calls_expected = 64;
const std::string store_method = fmt::format("/{}/Calls", wire::JobStore::service_full_name());

class NodeStream final : public GrpcStream, public StreamEnd {
 public:
  /// `let_in` is called when its Join was taken.
  NodeStream(std::unique_ptr<GrpcCall> call, std::weak_ptr<void> open, std::weak_ptr<StreamOwner*> owner, StreamNumber number,
             std::function<void()> let_in)
      : GrpcStream{std::move(call), std::move(open)}, owner_{std::move(owner)}, number_{number}, let_in_{std::move(let_in)} {}
  /// True until its Join has come, or it has ended.
  [[nodiscard]] bool is_newcomer() const { return !joined_ && !is_finished(); }
  void send(const CoordinatorMessage& message) override {
    if (closing_ || is_finished()) return;
    put(encoded(message));
  }
  void close() override {
    closing_ = true;
    owner_.reset();
    write_next();
  }

 private:
  void put(grpc::ByteBuffer bytes) {
    queue_.push_back(std::move(bytes));
    queued_ += queue_.back().Length();
    if (queued_ > stream_queue_max.value()) return abort();  // the read fails, which reports that the stream is broken
    write_next();
  }
  /// gRPC's own threads answer pings also where this loop stands still.
  void answer_alive() {
    wire::ToNode out;
    out.mutable_alive();
    if (!closing_ && !is_finished()) put(to_bytes(out));
  }
  static grpc::ByteBuffer encoded(const CoordinatorMessage& message) {
    wire::ToNode out;
    to_wire(message, out);
    return to_bytes(out);
  }
  static Result<std::optional<NodeMessage>> decoded(grpc::ByteBuffer& bytes) {
    wire::ToCoordinator in;
    if (!read_bytes(bytes, in)) return Failure{.code = Code::protocol, .remedy = Remedy::abort_group, .what = "not a message of a node"};
    return from_wire(in);
  }
  void write_next() {
    if (is_writing() || is_finished()) return;
    if (queue_.empty()) return closing_ ? finish() : void();
    write(queue_.front());
  }
  void written() override {
    queued_ -= queue_.front().Length();
    queue_.pop_front();
    write_next();
  }
  void broken() override {
    const auto owner = std::exchange(owner_, {}).lock();
    if (owner && joined_) (*owner)->broken(number_);
  }
  // Only a Join makes a stream one of the round's.
  bool join(const NodeMessage& message) {
    if (joined_) return true;
    const auto owner = owner_.lock();
    joined_ = owner && std::holds_alternative<Join>(message);
    if (joined_) (*owner)->opened(number_, std::static_pointer_cast<NodeStream>(shared_from_this()), false, plain_host(peer()));
    return joined_;
  }
  // All that a guard says. Its connection counts as no node's. The end of the stream tells the guard that it was heard.
  void on_guard_report(const AgentEnded& ended) {
    if (const auto owner = std::exchange(owner_, {}).lock()) (*owner)->on_guard_report(ended);
    finish();
  }
  void received(grpc::ByteBuffer& bytes) override {
    const Result<std::optional<NodeMessage>> message = decoded(bytes);
    if (const auto* ended = message.ok() && *message ? std::get_if<AgentEnded>(&**message) : nullptr; ended != nullptr && !joined_)
      return on_guard_report(*ended);
    if (!message.ok() || (*message && !join(**message))) {  // no node sends that
      broken();
      return abort();
    }
    if (const auto owner = owner_.lock(); owner && *message) (*owner)->received(number_, **message);
    if (*message && std::holds_alternative<NodeAlive>(**message)) answer_alive();
    if (joined_ && let_in_ && !closing_ && !is_finished()) std::exchange(let_in_, {})();
  }

  std::weak_ptr<StreamOwner*> owner_;
  const StreamNumber number_;
  std::function<void()> let_in_;        // none once it was called
  std::deque<grpc::ByteBuffer> queue_;  // its first one is being written
  std::uint64_t queued_ = 0;
  bool joined_ = false, closing_ = false;
};

// Hands connections to gRPC, on a thread of its own. The thread that hands one over also does what gRPC has to do for it at once. For a peer
// that sends without end this lasts until the connection is cut, and the loop must not wait for that.
class ConnectionHandover {
 public:
  ConnectionHandover() : thread_{quiet_thread([this] { work_.run(); })} {}
  ~ConnectionHandover() { close(); }
  ConnectionHandover(const ConnectionHandover&) = delete;
  ConnectionHandover& operator=(const ConnectionHandover&) = delete;
  void hand_over(grpc::experimental::ExternalConnectionAcceptor& acceptor, Fd connection, std::function<void()> done) {
    boost::asio::post(work_, [&acceptor, connection = std::make_shared<Fd>(std::move(connection)), done = std::move(done)] {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.fd = connection->give_up();
      acceptor.HandleNewConnection(&parameters);
      done();
    });
  }
  /// After the server was shut down.
  void close() {
    work_.stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  Loop work_{1};
  boost::asio::executor_work_guard<Loop::executor_type> stays_{work_.get_executor()};
  std::thread thread_;
};

// Streams that have not joined, oldest first. Their number and the time of each are bounded.
class Newcomers {
 public:
  Newcomers(Loop& loop, const Clock& clock, TurnedAway& turned_away, Duration patience, std::size_t most)
      : loop_{loop}, clock_{clock}, turned_away_{turned_away}, patience_{patience}, most_{most}, timer_{loop} {}

  void add(const std::shared_ptr<NodeStream>& stream) {
    forget_settled();
    if (streams_.size() >= most_) std::erase_if(streams_, [](const auto& s) { return !is_newcomer(s); });
    if (streams_.size() >= most_) end_first("streams that did not join, to make room for others");
    streams_.push_back({stream, clock_.now() + patience_});
    if (streams_.size() == 1) wait();
  }

 private:
  struct Newcomer {
    std::weak_ptr<NodeStream> stream;
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
      // A Join that came in time may still lie in the loop's queue: this task is posted behind it.
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
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // posted tasks hold it weakly
};

class GrpcServer final : public StreamServer {
 public:
  GrpcServer(Loop& loop, const Clock& clock, const Log& log, StreamOwner& owner, StreamServerOptions options)
      : loop_{loop},
        clock_{clock},
        options_{std::move(options)},
        turned_away_{log, clock},
        newcomers_{loop, clock, turned_away_, options_.patience, options_.waiting_max},
        owner_{std::make_shared<StreamOwner*>(&owner)} {}
  ~GrpcServer() override {
    acceptor_.reset();
    owner_.reset();                                                           // what streams still deliver is dropped
    if (server_) server_->Shutdown(std::chrono::system_clock::time_point{});  // long past: it cancels every call
    handover_.close();
    if (events_) events_->close();
  }
  Result<void> start(const std::string& address, std::uint16_t port) {
    quiet_grpc();
    ELRUN_TRY_ASSIGN(const Credentials credentials, read_credentials(options_.access));
    ELRUN_TRY_ASSIGN(const auto server_side, server_credentials(options_.access));
    token_ = credentials.token;
    // First of all, because it fails where another process is the host already. No connection is accepted before the loop runs again.
    ELRUN_TRY_ASSIGN(acceptor_,
                     GrpcAcceptor::open(loop_, clock_, address, port, {.tls = credentials.has_tls(), .patience = options_.patience},
                                        turned_away_, [this](Fd connection, std::function<void()> done) {
                                          handover_.hand_over(*grpc_acceptor_, std::move(connection), std::move(done));
                                        }));
    for (std::size_t i = 0; i < calls_expected; ++i) expected_.emplace_back(*this);
    const int patience = static_cast<int>(std::max<std::int64_t>(options_.patience / 1ms, 1));
    grpc::ServerBuilder builder;
    grpc_acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, server_side);
    builder.RegisterAsyncGenericService(&calls_);
    events_ = std::make_unique<GrpcEvents>(loop_, builder.AddCompletionQueue());
    builder.SetMaxReceiveMessageSize(static_cast<int>(wire_message_max.value()));
    builder.SetResourceQuota(grpc::ResourceQuota{"rendezvous"}.Resize(options_.memory_max.value()));
    // As few arguments and filters as possible: each connection makes each filter anew, which reads all arguments.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, patience);  // TLS, and HTTP/2's first settings
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, patience);       // a connection without a stream
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);  // a host that vanished with bytes still to be written
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);  // nodes may ping as often as they like
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // it would ping for each message to size a window; the window is set instead
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, stream_window);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 0);  // streams have none
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);  // nor can a few bytes become many
    builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
    server_ = builder.BuildAndStart();
    if (!server_) return Failure{.code = Code::io, .remedy = Remedy::retry, .what = "gRPC's server did not start"};
    for (Expected& call : expected_) wait_for(call);
    return {};
  }
  [[nodiscard]] std::uint16_t port() const override { return acceptor_->port(); }

 private:
  /// A call that gRPC may fill when one comes.
  class Expected {
   public:
    explicit Expected(GrpcServer& server) : server_{server} {}
    std::unique_ptr<GrpcCall> call;
    GrpcOperation& operation() { return come_; }

   private:
    void come(bool ok) { server_.called(*this, ok); }
    GrpcServer& server_;
    OperationOf<Expected, &Expected::come> come_{*this};
  };
  void wait_for(Expected& expected) {
    expected.call = std::make_unique<GrpcCall>();
    calls_.RequestCall(&expected.call->context, &expected.call->line, &events_->queue(), &events_->queue(), &expected.operation());
  }
  void called(Expected& expected, bool ok) {
    auto call = std::move(expected.call);
    if (!ok || !owner_) return;  // the server ends
    wait_for(expected);
    if (const auto refusal = token_refusal(token_, shown_token(call->context))) {
      turned_away_.tell("nodes or clients whose token is missing, wrong or not asked for", call->context.peer());
      call->context.AddTrailingMetadata(refusal_metadata, "token");
      return refuse(std::move(call), events_->open(), {grpc::StatusCode::UNAUTHENTICATED, *refusal});
    }
    const std::string method = call->context.method();
    if (method == node_method) return open_node_stream(std::move(call));
    if (method == store_method) {
      acceptor_->let_in(call->context.peer());  // by its token or its certificate; it sends nothing before it is answered
      return open_store_stream(std::move(call), events_->open(), owner_, store_clients_);
    }
    refuse(std::move(call), events_->open(), {grpc::StatusCode::UNIMPLEMENTED, fmt::format("no part of elrun's rendezvous: {}", method)});
  }
  void open_node_stream(std::unique_ptr<GrpcCall> call) {
    auto let_in = [this, open = std::weak_ptr{owner_}, peer = call->context.peer()] {
      if (!open.expired()) acceptor_->let_in(peer);
    };
    const auto stream =
        std::make_shared<NodeStream>(std::move(call), events_->open(), owner_, (*owner_)->number_stream(), std::move(let_in));
    newcomers_.add(stream);
    stream->start();
  }
  static std::string_view shown_token(const grpc::ServerContext& context) {
    const auto found = context.client_metadata().find(token_metadata);
    return found == context.client_metadata().end() ? std::string_view{} : std::string_view{found->second.data(), found->second.size()};
  }

  Loop& loop_;
  const Clock& clock_;
  const StreamServerOptions options_;
  Secret token_;
  TurnedAway turned_away_;
  Newcomers newcomers_;
  StoreClients store_clients_;
  std::shared_ptr<StreamOwner*> owner_;  // streams hold it weakly
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_acceptor_;
  grpc::AsyncGenericService calls_;
  std::unique_ptr<GrpcEvents> events_;
  std::unique_ptr<grpc::Server> server_;
  std::deque<Expected> expected_;  // calls that gRPC may fill when they come; with one alone, each of many would wait for this loop's turn
  ConnectionHandover handover_;
  std::unique_ptr<GrpcAcceptor> acceptor_;
};

}  // namespace

Result<std::unique_ptr<StreamServer>> start_stream_server(Loop& loop, const Clock& clock, const Log& log, StreamOwner& owner,
                                                          const std::string& address, std::uint16_t port, StreamServerOptions options) try {
  auto server = std::make_unique<GrpcServer>(loop, clock, log, owner, std::move(options));
  ELRUN_TRY(server->start(address, port));
  return std::unique_ptr<StreamServer>{std::move(server)};
} catch (const boost::system::system_error& error) {  // Asio's, where the system gives no descriptor
  return Failure{Code::exhausted, Remedy::retry,
                 fmt::format("serve the rendezvous: no descriptor (ulimit -n): {}", error.code().message())};
} catch (const std::system_error& error) {
  return Failure{Code::exhausted, Remedy::retry,
                 fmt::format("serve the rendezvous: no thread could be started (pids.max, ulimit -u): {}", error.code().message())};
}

}  // namespace elrun::inline v0
