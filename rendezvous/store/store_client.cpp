// The client has no thread of its own. A caller encodes its call, hands it to the stream and waits on a condition variable
// of its own. gRPC's thread stores the answer and wakes that caller. When the stream is gone, the first
// caller that notices opens the next one within its own deadline, while the others wait for it within theirs.

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>

#include <fmt/format.h>

#include <elrun/philox.hpp>
#include <elrun/store.hpp>

#include "lib/base/digest.hpp"
#include "lib/base/wait_time.hpp"
#include "lib/link/message.hpp"
#include "lib/link/request_store.hpp"
#include "rendezvous.grpc.pb.h"
#include "rendezvous/net/access.hpp"
#include "rendezvous/net/grpc.hpp"
#include "rendezvous/net/grpc_access.hpp"
#include "rendezvous/net/lookup.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration backoff_min = 20ms, backoff_max = 1s;
constexpr Duration attempt_max = 5s;      // for one address: a host that is gone does not answer at all
constexpr std::size_t calls_max = 65536;  // under way in one client: as many as the store takes of one stream
constexpr int keepalive_ms = 5000;        // a host that vanished without a word is noticed by pings

const SteadyClock steady;

bool may_repeat(StoreOp op) { return op != StoreOp::add && op != StoreOp::compare_set && op != StoreOp::remove; }

// What a stream reports to its client, on gRPC's threads.
class StreamUser {
 public:
  virtual void changed() = 0;  // it is up, or it is over
  virtual void answered(wire::StoreResults& results) = 0;

 protected:
  ~StreamUser() = default;
};

// One channel with one stream. Its destructor cancels it, and waits for gRPC's own threads alone.
class CallStream final : grpc::ClientBidiReactor<wire::StoreCalls, wire::StoreResults> {
 public:
  CallStream(StreamUser& user, const Address& address, const std::string& host, const Credentials& credentials) : user_{user} {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // no connection, and no back-off, of a stream before
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    arguments.SetMaxReceiveMessageSize(static_cast<int>(wire_message_max.value()));
    arguments.SetMaxSendMessageSize(static_cast<int>(wire_message_max.value()));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // it would ping for each answer to size a window; the window is set instead
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, stream_window);
    expect_certificate_for(host, credentials, arguments);
    stub_ = wire::JobStore::NewStub(grpc::CreateCustomChannel(address.target, channel_credentials(credentials), arguments));
    if (!credentials.token.empty()) context_.AddMetadata(token_metadata, token_proof(credentials.token));
    stub_->async()->Calls(&context_, this);
    AddHold();  // writes are started from outside gRPC's callbacks
    StartCall();
  }
  ~CallStream() override {
    context_.TryCancel();
    release();
    ended_->get_future().wait();  // a cancelled call ends by itself, in this process
  }
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;

  enum class State { opening, up, over };
  [[nodiscard]] State state() {
    const std::lock_guard lock{mutex_};
    return state_;
  }
  /// Why it is over.
  [[nodiscard]] grpc::Status status() {
    const std::lock_guard lock{mutex_};
    return status_;
  }
  void send(const ByteVector& request) {
    std::unique_lock lock{mutex_};
    if (state_ != State::up) return;
    if (batches_.empty() || (batches_.size() == 1 && writing_) || batches_.back().bytes + request.size() > store_batch_max.value())
      batches_.emplace_back();
    batches_.back().bytes += request.size();
    batches_.back().calls.add_calls()->set_request(request.data(), request.size());
    if (writing_) return;
    writing_ = starting_ = true;
    const wire::StoreCalls& first = batches_.front().calls;
    lock.unlock();  // what others send meanwhile goes together with the next message
    StartWrite(&first);
    lock.lock();
    starting_ = false;
    if (state_ != State::over || std::exchange(released_, true)) return;
    lock.unlock();
    RemoveHold();
  }

 private:
  struct Batch {
    wire::StoreCalls calls;
    std::uint64_t bytes = 0;
  };

  void release() {
    {
      const std::lock_guard lock{mutex_};
      state_ = State::over;
      if (starting_ || std::exchange(released_, true)) return;  // nothing is started without the hold
    }
    RemoveHold();
  }
  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return release();  // the status, which says why, comes with OnDone
    {
      const std::lock_guard lock{mutex_};
      if (state_ == State::opening) state_ = State::up;
    }
    StartRead(&in_);
    user_.changed();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return release();
    user_.answered(in_);
    StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    const wire::StoreCalls* next = nullptr;
    {
      const std::lock_guard lock{mutex_};
      batches_.pop_front();
      writing_ = ok && !batches_.empty();  // not ok: the read fails as well
      if (writing_) next = &batches_.front().calls;
    }
    if (next != nullptr) StartWrite(next);
  }
  void OnDone(const grpc::Status& status) override {
    {
      const std::lock_guard lock{mutex_};
      state_ = State::over;
      status_ = status;
    }
    const auto ended = ended_;  // the destructor, which may be waiting, takes the rest away
    user_.changed();
    ended->set_value();
  }

  StreamUser& user_;
  std::unique_ptr<wire::JobStore::Stub> stub_;
  grpc::ClientContext context_;
  wire::StoreResults in_;
  std::mutex mutex_;
  State state_ = State::opening;
  grpc::Status status_{grpc::StatusCode::UNAVAILABLE, "the stream broke"};
  std::deque<Batch> batches_;  // a deque: the one being written stays where it is
  bool writing_ = false, starting_ = false, released_ = false;
  std::shared_ptr<std::promise<void>> ended_ = std::make_shared<std::promise<void>>();
};

class StoreClient final : public RequestStore, StreamUser {
 public:
  StoreClient(Endpoint endpoint, Access access)
      : RequestStore{steady, Generation{}}, endpoint_{std::move(endpoint)}, access_{std::move(access)} {
    std::uint64_t seed = 0;
    random_bytes(std::as_writable_bytes(std::span{&seed, 1}));
    jitter_ = Rng{seed};
    quiet_grpc();
  }
  ~StoreClient() override { stream_.reset(); }

  Result<void> connect(Deadline deadline) {
    std::unique_lock lock{mutex_};
    return open(lock, deadline);
  }

 protected:
  Result<StoreReply> ask(StoreRequest request, Deadline deadline) override {
    Call call{.repeatable = may_repeat(request.op)};
    const std::string key = request.keys.empty() ? "" : fmt::format(" (\"{}\")", request.keys.front());
    std::unique_lock lock{mutex_};
    if (calls_.size() >= calls_max) return Failure{Code::exhausted, Remedy::retry, fmt::format("{} store calls are under way", calls_max)};
    const std::uint64_t id = request.id = ++last_id_;
    lock.unlock();
    const ByteVector payload = encode_payload(request);
    lock.lock();
    calls_.emplace(id, &call);
    std::optional<Failure> failure;
    while (!call.reply && !failure) {
      if (deadline.passed(steady.now())) {
        failure = Failure{Code::deadline_passed, Remedy::retry,
                          fmt::format("a store call{} had no answer from {} in time{}", key, name(), problem_)};
      } else if (stream_ && stream_->state() == CallStream::State::up) {
        if (call.sent_on != streams_) {
          if (call.sent_on != 0 && !call.repeatable) {
            failure = lost(key);
            continue;
          }
          call.sent_on = streams_;
          std::shared_ptr<CallStream> stream = stream_;
          lock.unlock();
          stream->send(payload);
          stream.reset();  // before the lock: it may be the last owner by now, and the stream's end takes the lock
          lock.lock();
          continue;  // the answer may be there
        }
        call.wake.wait_for(lock, wait_time(deadline, steady.now()));
      } else if (call.sent_on != 0 && !call.repeatable) {
        failure = lost(key);
      } else if (opening_) {
        call.wake.wait_for(lock, wait_time(deadline, steady.now()));
      } else if (auto opened = open(lock, deadline); !opened.ok() && opened.failure().remedy != Remedy::retry) {
        failure = std::move(opened).failure();
      }
    }
    calls_.erase(id);
    if (failure) return *std::move(failure);
    return *std::move(call.reply);
  }
  [[nodiscard]] std::uint32_t rank() const override { return 0; }  // a barrier counts clients by who they are

 private:
  struct Call {
    bool repeatable = false;
    std::uint64_t sent_on = 0;  // number of the stream
    std::optional<StoreReply> reply{};
    std::condition_variable wake{};
  };

  [[nodiscard]] std::string name() const { return fmt::format("the store at {}:{}", endpoint_.host, endpoint_.port); }
  [[nodiscard]] Failure lost(const std::string& key) const {
    return {Code::unreachable, Remedy::retry,
            fmt::format("{} was lost while a call{} was under way; whether it was done is not known", name(), key)};
  }

  void changed() override {
    const std::lock_guard lock{mutex_};
    opened_.notify_all();
    for (const auto& [id, call] : calls_) call->wake.notify_one();
  }
  void answered(wire::StoreResults& results) override {
    for (const wire::StoreResult& result : results.results()) {
      Result<StoreReply> reply = decode_store_reply(as_bytes(result.reply()));
      if (!reply.ok()) continue;  // the caller that waits for it ends by its deadline
      const std::lock_guard lock{mutex_};
      const auto call = calls_.find(reply->id);
      if (call == calls_.end()) continue;
      call->second->reply = *std::move(reply);
      call->second->wake.notify_one();
    }
  }

  /// Opens a stream, trying again until the deadline. Unlocks while it waits.
  Result<void> open(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    opening_ = true;
    auto result = try_until(lock, deadline);
    opening_ = false;
    for (const auto& [id, call] : calls_) call->wake.notify_one();
    return result;
  }
  Result<void> try_until(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    for (Duration backoff = backoff_min;; backoff = std::min(2 * backoff, backoff_max)) {
      std::shared_ptr<CallStream> last = std::move(stream_);
      lock.unlock();
      last.reset();
      Resolved resolved;
      {
        boost::asio::io_context loop{1};
        NameLookup lookup{loop};
        lookup.start(endpoint_, [&](Resolved answer) {
          resolved = std::move(answer);
          loop.stop();
        });
        resolved.problem = fmt::format("the name {} was not resolved in time", endpoint_.host);
        const auto work = boost::asio::make_work_guard(loop);
        loop.run_for(wait_time(deadline, steady.now()));
      }
      auto credentials = read_credentials(access_);  // anew: they may have been replaced
      lock.lock();
      if (!credentials.ok()) return std::move(credentials).failure();
      problem_ = fmt::format(": {}", resolved.problem);
      for (const Address& address : resolved.addresses) {
        lock.unlock();
        auto stream = std::make_shared<CallStream>(static_cast<StreamUser&>(*this), address, endpoint_.host, *credentials);
        lock.lock();
        const Deadline attempt{std::min(deadline.at, steady.now() + attempt_max)};
        while (stream->state() == CallStream::State::opening && !attempt.passed(steady.now()))
          opened_.wait_for(lock, attempt.left(steady.now()));
        if (stream->state() == CallStream::State::up) {
          stream_ = std::move(stream);
          ++streams_;
          problem_.clear();
          return {};
        }
        const bool answered = stream->state() == CallStream::State::over;
        lock.unlock();
        const grpc::Status status = answered ? stream->status() : grpc::Status{grpc::StatusCode::DEADLINE_EXCEEDED, "no answer in time"};
        stream.reset();
        lock.lock();
        problem_ = fmt::format(": {}: {}", address.text, status.error_message());
        if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED || status.error_code() == grpc::StatusCode::UNIMPLEMENTED)
          return Failure{Code::refused, Remedy::fix_config, fmt::format("{} refuses this client{}", name(), problem_)};
      }
      if (deadline.passed(steady.now()))
        return Failure{Code::unreachable, Remedy::retry, fmt::format("{} could not be reached in time{}", name(), problem_)};
      // Half of the wait is chance, so that the clients of a job do not come back all at once.
      const Duration wait =
          backoff / 2 + Duration{static_cast<Duration::rep>(jitter_.below(static_cast<std::uint64_t>((backoff / 2).count())))};
      const Instant until = std::min(deadline.at, steady.now() + wait);
      while (steady.now() < until) opened_.wait_for(lock, until - steady.now());
    }
  }

  const Endpoint endpoint_;
  const Access access_;
  std::mutex mutex_;
  std::condition_variable opened_;  // something happened to a stream that is being opened
  Rng jitter_{0};
  bool opening_ = false;
  std::string problem_;  // with the last attempt
  std::map<std::uint64_t, Call*> calls_;
  std::uint64_t last_id_ = 0, streams_ = 0;
  std::shared_ptr<CallStream> stream_;  // last: it ends before what it speaks to
};

std::optional<Endpoint> endpoint_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size() || text.size() - colon > 6) return {};
  std::uint32_t port = 0;
  for (const char c : text.substr(colon + 1)) {
    if (c < '0' || c > '9') return {};
    port = port * 10 + static_cast<std::uint32_t>(c - '0');
  }
  if (port == 0 || port > UINT16_MAX) return {};
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string::npos) return {};  // an IPv6 address without brackets: which colon is the port's?
  return Endpoint{std::move(host), static_cast<std::uint16_t>(port)};
}

}  // namespace

Result<std::unique_ptr<Store>> connect_store(const std::string& endpoint, const StoreClientOptions& options, Deadline deadline) {
  const auto parsed = endpoint_of(endpoint);
  if (!parsed)
    return Failure{Code::invalid_argument, Remedy::fix_config,
                   fmt::format("`{}` is no endpoint; give HOST:PORT, or [ADDRESS]:PORT for IPv6", endpoint)};
  Access access{options.ca_file, options.certificate_file, options.key_file, options.token_file, Secret{options.token}};
  auto client = std::make_unique<StoreClient>(*parsed, std::move(access));
  ELRUN_TRY(client->connect(deadline));
  return std::unique_ptr<Store>{std::move(client)};
}

}  // namespace elrun::inline v0
