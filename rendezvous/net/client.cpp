// One attempt after the other until the link is destroyed: resolve the name, open a channel of its own to one address,
// start the stream, wait until the coordinator says that it is there. An attempt owns all that gRPC knows of it and ends
// as a whole; ending it waits for gRPC's own threads alone, after the call was cancelled, never for the coordinator.

#include <grpcpp/grpcpp.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <deque>
#include <future>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <elrun/philox.hpp>

#include "lib/base/words.hpp"
#include "rendezvous.grpc.pb.h"
#include "rendezvous/net/grpc.hpp"
#include "rendezvous/net/grpc_access.hpp"
#include "rendezvous/net/lookup.hpp"
#include "rendezvous/net/node_link.hpp"

namespace elrun::inline v0 {
namespace {

using Loop = boost::asio::io_context;

constexpr Duration backoff_min = 50ms, backoff_max = 2s;
constexpr Duration leave_taking_max = 1s;
constexpr Duration look_interval = 1s;  // between two looks at the name while an address does not answer

// No proxy, no retries, and no connection or back-off of a channel before.
grpc::ChannelArguments own_channel() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(wire_message_max.value()));
  arguments.SetMaxSendMessageSize(static_cast<int>(wire_message_max.value()));
  return arguments;
}

// What one attempt tells its link; loop thread only.
class AttemptOwner {
 public:
  virtual void up() = 0;
  virtual void received(const CoordinatorMessage& message) = 0;
  virtual void heard(bool is_alive) = 0;  // whatever it was; `is_alive`: the answer to a NodeAlive
  virtual void down(std::string why) = 0;
  virtual void refused(std::string why) = 0;  // for good

 protected:
  ~AttemptOwner() = default;
};

// One channel with one stream. More fields than 15: gRPC calls back for each step (metadata, read, written, done), each callback posts its
// twin to the loop, and what gRPC reads and writes lives here.
class Attempt final : grpc::ClientBidiReactor<wire::ToCoordinator, wire::ToNode> {
 public:
  Attempt(Loop& loop, AttemptOwner& owner, const Address& address, const std::string& host, const Credentials& credentials,
          const Timeouts& timeouts)
      : loop_{loop}, owner_{std::make_shared<AttemptOwner*>(&owner)}, address_{address.text} {
    grpc::ChannelArguments arguments = own_channel();
    // A coordinator whose host vanished without a word is noticed by pings.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(timeouts.heartbeat_limit / 1ms));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(timeouts.heartbeat_limit / 1ms));
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // as the server has it
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, stream_window);
    expect_certificate_for(host, credentials, arguments);
    channel_ = grpc::CreateCustomChannel(address.target, channel_credentials(credentials), arguments);
    if (!credentials.token.empty()) context_.AddMetadata(token_metadata, token_proof(credentials.token));
    stub_ = wire::Rendezvous::NewStub(channel_);
    stub_->async()->Node(&context_, this);
    AddHold();  // reads and writes are started from outside gRPC's callbacks
    StartCall();
  }
  ~Attempt() override {
    owner_.reset();
    context_.TryCancel();
    release();
    ended_->get_future().wait();  // a cancelled call ends by itself, in this process
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  void send(const NodeMessage& message) {
    if (over_) return;
    wire::ToCoordinator out;
    to_wire(message, out);
    queued_ += out.ByteSizeLong();
    if (queued_ > stream_queue_max.value()) return cancel("the coordinator does not read what it is sent");
    queue_.push_back(std::move(out));
    write();
  }
  /// The last that is sent. The coordinator ends the stream when it has read that, or that nothing more comes.
  void send_last(const NodeMessage& message) {
    last_ = true;
    send(message);
  }
  /// The owner is told that it is down, for this reason.
  void cancel(std::string why) {
    if (over_) return;
    if (why_.empty()) why_ = std::move(why);
    context_.TryCancel();
  }

 private:
  void write() {
    if (writing_ || queue_.empty() || over_ || !up_) return;
    writing_ = true;
    StartWrite(&queue_.front());
  }
  void release() {
    if (!std::exchange(over_, true)) RemoveHold();
  }
  void metadata(bool ok) {
    if (over_) return;
    if (!ok) return release();  // the status, which says why, comes with OnDone
    up_ = true;
    StartRead(&in_);
    (*owner_)->up();
  }
  void read(bool ok) {
    if (over_) return;
    if (!ok) return release();
    const Result<std::optional<CoordinatorMessage>> message = from_wire(in_);
    if (!message.ok()) {
      cancel(message.failure().what);
      return release();
    }
    const bool is_alive = in_.has_alive();
    StartRead(&in_);
    (*owner_)->heard(is_alive);
    if (*message) (*owner_)->received(**message);  // may destroy this
  }
  void written(bool ok) {
    writing_ = false;
    queued_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (!ok) return;  // the read fails as well, and says so
    if (!queue_.empty()) write();
    else if (last_ && !over_) StartWritesDone();
  }

  // These run on gRPC's threads. An attempt is destroyed on the loop, and a task that was posted for it then finds `owner_` expired.
  void OnReadInitialMetadataDone(bool ok) override {
    post([this, ok] { metadata(ok); });
  }
  void OnReadDone(bool ok) override {
    post([this, ok] { read(ok); });
  }
  void OnWriteDone(bool ok) override {
    post([this, ok] { written(ok); });
  }
  void OnDone(const grpc::Status& status) override {
    std::string why = status.ok() ? "it ended the stream" : status.error_message();
    const auto ended = ended_;  // the destructor, which may be waiting, takes the rest away
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED && context_.GetServerTrailingMetadata().contains(refusal_metadata))
      post([this, why = std::move(why)] { (*owner_)->refused(why); });
    else post([this, why = std::move(why)] { (*owner_)->down(why_.empty() ? why : why_); });
    ended->set_value();
  }
  template <class Call>
  void post(Call call) {
    boost::asio::post(loop_, [alive = alive_, call = std::move(call)] {
      if (!alive.expired()) call();
    });
  }

  Loop& loop_;
  std::shared_ptr<AttemptOwner*> owner_;
  std::weak_ptr<AttemptOwner*> alive_ = owner_;
  std::string address_, why_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<wire::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  wire::ToNode in_;
  std::deque<wire::ToCoordinator> queue_;
  std::uint64_t queued_ = 0;
  bool up_ = false, writing_ = false, over_ = false, last_ = false;
  std::shared_ptr<std::promise<void>> ended_ = std::make_shared<std::promise<void>>();
};

// More fields than 15, most of which are what it was given, or timers. Its methods are those of NodeLink and AttemptOwner, and the steps of one attempt.
class GrpcLink final : public NodeLink, public AttemptOwner {
 public:
  GrpcLink(Loop& loop, Endpoint endpoint, const Timeouts& timeouts, std::uint64_t jitter_seed, Handler handler, Access access)
      : loop_{loop},
        endpoint_{std::move(endpoint)},
        access_{std::move(access)},
        timeouts_{timeouts},
        rng_{jitter_seed},
        handler_{std::make_shared<const Handler>(std::move(handler))},
        timer_{loop},
        heartbeat_{loop},
        look_{loop} {
    quiet_grpc();
    post([this] { start(); });
  }
  void send(const NodeMessage& message) override {
    if (up_) attempt_->send(message);
  }
  void look_again() override {
    if (!up_) return;
    lookup_.start(endpoint_, [this](const Resolved& now) {
      if (up_ && leads_elsewhere(now)) leave_for(now);
    });
  }
  [[nodiscard]] bool is_taking_leave() const override { return over_ && attempt_ != nullptr; }
  [[nodiscard]] std::string local_address() const override { return local_address_; }
  [[nodiscard]] std::string leaves_from() const override { return up_ ? local_address_ : std::string{}; }
  [[nodiscard]] std::optional<LineTarget> leads_to() const override {
    if (!up_) return {};
    return LineTarget{addresses_[next_address_].target, endpoint_.host};
  }

 private:
  template <class Call>
  void post(Call call) {
    boost::asio::post(loop_, [alive = std::weak_ptr{alive_}, call = std::move(call)]() mutable {
      if (!alive.expired()) call();
    });
  }
  template <class Call>
  void tell(Call call) {
    const std::shared_ptr<const Handler> handler = handler_;  // it may destroy this link
    call(*handler);
  }

  void start() {
    lookup_.start(endpoint_, [this](Resolved result) { resolved(std::move(result)); });
  }
  void resolved(Resolved result) {
    if (result.addresses.empty()) return failed({Code::unreachable, Remedy::retry, std::move(result.problem)});
    addresses_ = std::move(result.addresses);
    next_address_ = 0;
    open();
  }
  void open() {
    const auto credentials = read_credentials(access_);  // anew: they may have been replaced
    if (!credentials.ok()) return failed(credentials.failure());
    has_received_ = answers_alive_ = false;
    unanswered_ = 0;
    attempt_ = std::make_unique<Attempt>(loop_, *this, addresses_[next_address_], endpoint_.host, *credentials, timeouts_);
    arm(timer_, timeouts_.heartbeat_limit, [this] {
      if (!up_) attempt_->cancel(fmt::format("no answer within {:.3g} s", seconds(timeouts_.heartbeat_limit)));
    });
    look_while_unanswered();
  }

  [[nodiscard]] bool leads_elsewhere(const Resolved& now) const {
    const std::string& here = addresses_[next_address_].target;
    return !now.addresses.empty() &&
           std::none_of(now.addresses.begin(), now.addresses.end(), [&](const Address& a) { return a.target == here; });
  }
  void leave_for(const Resolved& now) {
    attempt_->cancel(fmt::format("the name {} leads to {} now", endpoint_.host, now.addresses.front().text));
  }
  // A pod that was lost in silence comes back under its name at another address: nobody waits for the old one to answer any longer.
  void look_while_unanswered() {
    arm(look_, look_interval, [this] {
      lookup_.start(endpoint_, [this](const Resolved& now) {
        if (up_ || !attempt_) return;
        if (!leads_elsewhere(now)) return look_while_unanswered();
        has_moved_ = true;
        leave_for(now);
      });
    });
  }

  void up() override {
    up_ = true;
    look_.cancel();
    backoff_ = backoff_min;
    last_reason_.clear();
    timer_.cancel();
    local_address_ = source_address(addresses_[next_address_]);
    beat();
    tell([](const Handler& h) { h.connected(); });
  }
  void heard(bool is_alive) override {
    answers_alive_ = answers_alive_ || is_alive;
    unanswered_ = 0;
  }
  void received(const CoordinatorMessage& message) override {
    if (over_) return;
    has_received_ = true;
    const bool is_verdict = std::holds_alternative<Verdict>(message);
    if (is_verdict || std::holds_alternative<Refused>(message)) {  // nothing comes after it
      over_ = true;
      up_ = false;
      heartbeat_.cancel();
      if (is_verdict) attempt_->send_last(VerdictReceived{});
      if (is_verdict) arm(timer_, leave_taking_max, [this] { take_leave(); });
      else post([this] { take_leave(); });
    }
    tell([&](const Handler& h) { h.message(message); });
  }
  void down(std::string why) override {
    const bool was_up = std::exchange(up_, false);
    timer_.cancel();
    heartbeat_.cancel();
    look_.cancel();
    if (over_) return take_leave();
    attempt_.reset();
    if (std::exchange(has_moved_, false) && !was_up) return start();
    const Address& address = addresses_[next_address_];
    const bool silent = was_up && tells_of_silence(why);
    if (!was_up || (!has_received_ && why.find("reset") != why.npos)) why += advice(why);  // its Join was not taken
    // Another address of the same name may answer; only the whole list counts as an attempt.
    if (!was_up && ++next_address_ < addresses_.size()) return open();
    failed({silent ? Code::deadline_passed : Code::unreachable, Remedy::retry, fmt::format("{}: {}", address.text, in_plain_words(why))});
  }
  void take_leave() {
    attempt_.reset();
    tell([](const Handler& h) {
      if (h.took_leave) h.took_leave();
    });
  }
  void refused(std::string why) override {
    received(Refused{{.code = Code::refused,
                      .remedy = Remedy::fix_config,
                      .what = fmt::format("the coordinator at {} ({}): {}", endpoint_.host, addresses_[next_address_].text, why)}});
  }
  // What a person can do about a connection that ended before the coordinator answered. It is judged by how the connection ended,
  // which is all that is known of the cause:
  //  * A coordinator whose port is full resets connections, or does not get to them.
  //  * One that expects TLS answers a node without it with a GOAWAY, and closes the connection where a handshake fails.
  [[nodiscard]] std::string advice(std::string_view why) const {
    const auto says = [&](std::string_view text) { return why.find(text) != why.npos; };
    if (says("parsing HTTP/2")) return "; who listens there is no rendezvous of elrun: is the port another program's?";
    if (says("reset") || says("no answer within"))
      return "; its port may be full of connections that never authenticate: then the coordinator's log names the addresses that hold the most places";
    if (access_.has_tls() && (says("closed") || says("andshake")))
      return fmt::format("; does it speak TLS too, with a certificate for {}, and does each side's cacert vouch for the other's cert?",
                         endpoint_.host);
    if (says("GOAWAY")) return "; does it demand TLS (--rdzv_conf cacert=...,cert=...,key=...)?";
    return says("closed") ? "; it ended the connection before this node was admitted: the coordinator's log may say why" : "";
  }
  void failed(Failure why) {
    if (why.what != last_reason_) {
      last_reason_ = why.what;
      post([this, why] { tell([&](const Handler& h) { h.disconnected(why); }); });
    }
    // Half of the wait is chance, so that the nodes of a job do not come back all at once.
    const Duration wait =
        backoff_ / 2 + Duration{static_cast<Duration::rep>(rng_.below(static_cast<std::uint64_t>((backoff_ / 2).count())))};
    backoff_ = std::min(backoff_ * 2, backoff_max);
    arm(timer_, wait, [this] { start(); });
  }
  void beat() {
    arm(heartbeat_, timeouts_.heartbeat, [this] {
      if (!up_) return;
      if (answers_alive_ && unanswered_ * timeouts_.heartbeat > timeouts_.heartbeat_limit)
        return attempt_->cancel(
            fmt::format("{} for {:.3g} s, although its connection stands: is its process stopped, or does its storage not answer?",
                        silent_coordinator, seconds(timeouts_.heartbeat_limit)));
      ++unanswered_;
      attempt_->send(NodeAlive{});
      beat();
    });
  }
  template <class Call>
  void arm(boost::asio::steady_timer& timer, Duration wait, Call call) {
    timer.expires_after(wait);
    timer.async_wait([alive = std::weak_ptr{alive_}, call = std::move(call)](const boost::system::error_code& error) mutable {
      if (!alive.expired() && !error) call();
    });
  }

  Loop& loop_;
  Endpoint endpoint_;
  Access access_;
  Timeouts timeouts_;
  Rng rng_;
  std::shared_ptr<const Handler> handler_;
  boost::asio::steady_timer timer_, heartbeat_, look_;
  NameLookup lookup_{loop_};
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // posted tasks hold it weakly
  std::vector<Address> addresses_;
  std::size_t next_address_ = 0;
  Duration backoff_ = backoff_min;
  std::string last_reason_, local_address_;
  bool up_ = false;
  bool has_moved_ = false;      // the name leads elsewhere, and that is where the next attempt goes
  bool has_received_ = false;   // the coordinator has said something on this attempt
  bool answers_alive_ = false;  // it answers NodeAlive, which one of an earlier version does not
  unsigned unanswered_ = 0;     // NodeAlive that were sent since it was last heard; none are sent while this process itself stands still
  bool over_ = false;           // the last word was heard
  std::unique_ptr<Attempt> attempt_;  // last: it ends before what it speaks to
};

// One try.
grpc::Status tell_once(const LineTarget& target, const Credentials& credentials, const AgentEnded& ended, Duration within) {
  grpc::ChannelArguments arguments = own_channel();
  expect_certificate_for(target.host, credentials, arguments);
  const auto stub = wire::Rendezvous::NewStub(grpc::CreateCustomChannel(target.address, channel_credentials(credentials), arguments));
  grpc::ClientContext context;
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(within.count(), GPR_TIMESPAN)));
  if (!credentials.token.empty()) context.AddMetadata(token_metadata, token_proof(credentials.token));
  wire::ToCoordinator out;
  to_wire(NodeMessage{ended}, out);
  const auto stream = stub->Node(&context);
  (void)stream->Write(out);  // the status says how it went
  return stream->Finish();
}

}  // namespace

Result<void> tell_of_ended_agent(const LineTarget& target, const Access& access, const AgentEnded& ended, Duration within,
                                 const Clock& clock) {
  quiet_grpc();
  for (const Instant until = clock.now() + within;; std::this_thread::sleep_for(backoff_min)) {
    ELRUN_TRY_ASSIGN(const Credentials credentials, read_credentials(access));
    const grpc::Status status = tell_once(target, credentials, ended, until - clock.now());
    if (status.ok()) return {};
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED || clock.now() + backoff_min >= until)
      return Failure{Code::unreachable, Remedy::retry, fmt::format("{}: {}", target.address, in_plain_words(status.error_message()))};
  }
}

std::unique_ptr<NodeLink> connect_to_coordinator(Loop& loop, const Endpoint& endpoint, const Timeouts& timeouts, std::uint64_t jitter_seed,
                                                 NodeLink::Handler handler, const Access& access) {
  return std::make_unique<GrpcLink>(loop, endpoint, timeouts, jitter_seed, std::move(handler), access);
}

}  // namespace elrun::inline v0
