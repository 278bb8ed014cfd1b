// The shell around the round and the store. Streams and timers post tasks to the loop, which runs them one after the other.
// Each event goes through a pure core, and what the core answers is performed. Nothing is decided here.

#include <map>
#include <optional>
#include <set>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "lib/base/digest.hpp"
#include "lib/base/log_limited.hpp"
#include "lib/link/store_core.hpp"
#include "rendezvous/net/announcements.hpp"
#include "rendezvous/net/liveness.hpp"
#include "rendezvous/net/node_link.hpp"
#include "rendezvous/net/store_callers.hpp"
#include "rendezvous/net/stream.hpp"

namespace elrun::inline v0 {
namespace {

using Loop = boost::asio::io_context;

constexpr std::uint32_t lines_by_one_max = 200;  // in 10 s, of nodes that come and go

RoundSetup setup_of(const Coordinator::Options& options) {
  RoundSetup setup;
  setup.run = options.run;
  setup.nodes_min = options.nodes_min;
  setup.nodes_max = options.nodes_max;
  setup.version = ELRUN_RELEASE;
  setup.timeouts = options.timeouts;
  setup.generation_floor = options.generation_floor;
  setup.floor_may_run = options.ledger != nullptr && options.generation_floor > 0;
  setup.elected = options.ledger != nullptr;
  random_bytes(std::as_writable_bytes(std::span{setup.lineage.bits}));
  random_bytes(setup.secret);
  return setup;
}

// The next generation may wait for this agent, so it is short. It is not 0: a coordinator that ends each line at once would fill the loop.
constexpr Duration reopened_after = 200ms;

// An agent's line in the coordinator's own process: two mailboxes on one loop. As one over gRPC it comes back when the coordinator has ended it.
class InProcessLink final : public NodeLink {
 public:
  /// The agent's end; shared, because posted tasks hold it weakly.
  class Agent : public std::enable_shared_from_this<Agent> {
   public:
    Agent(Loop& loop, std::weak_ptr<StreamOwner*> owner, Handler handler)
        : loop_{loop}, owner_{std::move(owner)}, handler_{std::move(handler)}, timer_{loop} {}
    void open() {
      const auto owner = owner_.lock();
      if (!owner) return;
      number_ = (*owner)->number_stream();
      (*owner)->opened(number_, std::make_shared<End>(loop_, weak_from_this()), true, {});
      boost::asio::post(loop_, [agent = weak_from_this()] {
        if (const auto there = agent.lock()) there->handler_.connected();
      });
    }
    void send(const NodeMessage& message) {
      boost::asio::post(loop_, [owner = owner_, number = number_, message] {
        if (const auto there = owner.lock()) (*there)->received(number, message);
      });
    }
    void end() {
      boost::asio::post(loop_, [owner = owner_, number = number_] {
        if (const auto there = owner.lock()) (*there)->broken(number);
      });
    }
    // The handler may destroy the link: whoever calls these holds the agent's end.
    void hear(const CoordinatorMessage& message) {
      over_ = over_ || std::holds_alternative<Verdict>(message) || std::holds_alternative<Refused>(message);
      handler_.message(message);
    }
    void close() {
      if (over_) return;  // nothing comes after the last word
      timer_.expires_after(reopened_after);
      timer_.async_wait([agent = weak_from_this()](const boost::system::error_code& error) {
        if (const auto there = agent.lock(); there && !error) there->open();
      });
      handler_.disconnected({Code::unreachable, Remedy::retry, "the coordinator in this process ended the line"});
    }

   private:
    Loop& loop_;
    std::weak_ptr<StreamOwner*> owner_;
    const Handler handler_;
    boost::asio::steady_timer timer_;
    StreamNumber number_{};
    bool over_ = false;
  };
  class End final : public StreamEnd {
   public:
    End(Loop& loop, std::weak_ptr<Agent> agent) : loop_{loop}, agent_{std::move(agent)} {}
    void send(const CoordinatorMessage& message) override {
      boost::asio::post(loop_, [agent = agent_, message] {
        if (const auto there = agent.lock()) there->hear(message);
      });
    }
    void close() override {
      boost::asio::post(loop_, [agent = agent_] {
        if (const auto there = agent.lock()) there->close();
      });
    }

   private:
    Loop& loop_;
    std::weak_ptr<Agent> agent_;
  };

  InProcessLink(Loop& loop, std::weak_ptr<StreamOwner*> owner, Handler handler)
      : agent_{std::make_shared<Agent>(loop, std::move(owner), std::move(handler))} {
    agent_->open();
  }
  ~InProcessLink() override { agent_->end(); }
  void send(const NodeMessage& message) override { agent_->send(message); }
  [[nodiscard]] std::string local_address() const override { return "127.0.0.1"; }

 private:
  std::shared_ptr<Agent> agent_;
};

// More fields than 15, for it is where everything meets that a coordinator has: the two cores, their timers, the streams, the service, and what these
// need. It decides nothing: an event becomes one call of a core, and each action one call of what it is about.
class CoordinatorShell final : public Coordinator, public StreamOwner {
 public:
  CoordinatorShell(Loop& loop, const Clock& clock, const Log& log, const Options& options)
      : loop_{loop},
        clock_{clock},
        log_{log},
        access_{options.access},
        newcomer_{options.timeouts.newcomer},
        ledger_{options.ledger},
        announcements_{options.ledger != nullptr},
        round_{setup_of(options)},
        liveness_{loop, options.timeouts.reconnect_grace},
        round_timer_{loop},
        store_timer_{loop} {}

  Result<std::uint16_t> serve(const std::string& address, std::uint16_t port) override {
    ELRUN_TRY_ASSIGN(server_, start_stream_server(loop_, clock_, log_, *this, address, port, {.access = access_, .patience = newcomer_}));
    return server_->port();
  }
  [[nodiscard]] std::unique_ptr<NodeLink> connect_in_process(NodeLink::Handler handler) override {
    return std::make_unique<InProcessLink>(loop_, self_, std::move(handler));
  }
  [[nodiscard]] const std::optional<Verdict>& verdict() const override { return round_.verdict(); }
  [[nodiscard]] bool may_exit() const override { return announcements_.empty() && round_.may_end(clock_.now()); }
  void on_may_exit(std::function<void()> call) override { on_may_exit_ = std::move(call); }

 private:
  StreamNumber number_stream() override { return StreamNumber{++streams_made_}; }
  void opened(StreamNumber number, std::shared_ptr<StreamEnd> end, bool in_process, std::string from) override {
    streams_.emplace(number, std::move(end));
    feed(StreamOpened{number, in_process, std::move(from)});
  }
  StreamNumber opened_outside(std::shared_ptr<StreamEnd> end) override {
    const StreamNumber number{++streams_made_};
    streams_.emplace(number, std::move(end));
    outside_.insert(number);
    return number;
  }
  void received(StreamNumber stream, const NodeMessage& message) override {
    if (const auto* call = std::get_if<StoreCall>(&message)) {
      const bool outside = outside_.contains(stream);
      if (!outside && !round_.joined(stream)) return;
      const StoreCaller caller = callers_.number_of({stream, call->worker});
      return deliver(store_.call(caller, call->request, clock_.now(), outside ? StoreScope::job : StoreScope::generation));
    }
    if (const auto* gone = std::get_if<StoreCallerGone>(&message)) {
      if (const auto caller = callers_.forget({stream, gone->worker})) store_.forget(*caller);
      return;
    }
    feed(FromNode{stream, message});
  }
  void broken(StreamNumber stream) override {
    drop(stream);
    if (outside_.erase(stream) == 0) feed(StreamBroken{stream});
  }

  void on_guard_report(const AgentEnded& ended) override { feed(FromGuard{ended}); }

  void feed(const RoundEvent& event) {
    for (RoundAction& action : round_.step(event, clock_.now())) {
      if (const auto* wake = std::get_if<WakeAt>(&action)) {
        perform(*wake);
      } else if (const auto* ask = std::get_if<AskHost>(&action)) {
        perform(*ask);
      } else {
        announcements_.add(std::move(action));
        announce();
      }
    }
    announce_or_ask();
  }
  void announce() {
    while (const std::optional<RoundAction> action = announcements_.next()) std::visit([&](const auto& a) { perform(a); }, *action);
  }
  void announce_or_ask() {
    announce();
    if (const auto entry = announcements_.entry())
      return ledger_->clear(
          entry->generation,
          [this, self = std::weak_ptr{self_}] {
            if (self.expired()) return;
            announcements_.cleared();
            announce_or_ask();
          },
          [this, self = std::weak_ptr{self_}](const std::string& why) {
            if (!self.expired()) delayed(why);
          });
    tell_if_may_exit();
  }
  void delayed(const std::string& why) {
    const std::string text = "the next decision cannot be written to etcd yet; it waits: " + why;
    log_.warning(text);
    for (const auto& [number, stream] : streams_) stream->send(Waiting{.why = text, .decided = round_.verdict()});
  }
  void tell_if_may_exit() {
    if (!reported_may_exit_ && on_may_exit_ && round_.verdict() && may_exit()) {
      reported_may_exit_ = true;
      boost::asio::post(loop_, [this, self = std::weak_ptr{self_}] {
        if (!self.expired()) on_may_exit_();
      });
    }
  }
  void perform(const SendTo& send) {
    if (const auto stream = streams_.find(send.stream); stream != streams_.end()) stream->second->send(send.message);
  }
  void perform(const CloseStream& close) {
    const auto stream = streams_.find(close.stream);
    if (stream == streams_.end()) return;
    stream->second->close();
    drop(close.stream);
  }
  void perform(const AskHost& ask) {
    liveness_.ask(ask.port, [this, who = ask.who] { feed(FromHost{who}); });
  }
  void perform(const WakeAt& wake) {
    round_timer_.expires_after(wake.at - clock_.now());
    round_timer_.async_wait([this, self = std::weak_ptr{self_}](const boost::system::error_code& error) {
      if (!error && !self.expired()) feed(RoundTick{});
    });
  }
  void perform(const BeginGeneration& begin) {
    if (begin.adopted) deliver(store_.adopt_generation(begin.generation, static_cast<std::uint32_t>(begin.members.size())));
    else deliver(store_.begin_generation(begin.generation));
  }
  void perform(const EndGeneration& end) { deliver(store_.end_generation(end.why)); }
  void perform(const HandOver&) { ledger_->hand_over(); }
  void perform(const Say& say) { say.by_one ? by_one_(log_, clock_.now(), say.level, say.text) : log_(say.level, say.text); }

  void deliver(std::vector<StoreAnswer> answers) {
    for (StoreAnswer& answer : answers) {
      const StoreCallers::Caller& caller = callers_.at(answer.to);
      if (const auto stream = streams_.find(caller.stream); stream != streams_.end())
        stream->second->send(StoreResult{caller.worker, std::move(answer.reply)});
    }
    const std::optional<Instant> next = store_.next_expiry();
    if (next == store_wake_) return;
    store_wake_ = next;
    store_timer_.cancel();
    if (!next) return;
    store_timer_.expires_after(*next - clock_.now());
    store_timer_.async_wait([this, self = std::weak_ptr{self_}](const boost::system::error_code& error) {
      if (error || self.expired()) return;
      store_wake_.reset();
      deliver(store_.expire(clock_.now()));
    });
  }
  void drop(StreamNumber stream) {
    streams_.erase(stream);
    for (const StoreCaller caller : callers_.forget(stream)) store_.forget(caller);
  }

  Loop& loop_;
  const Clock& clock_;
  const Log& log_;
  LogLimited by_one_{lines_by_one_max};
  const Access access_;
  const Duration newcomer_;
  Ledger* const ledger_;
  Announcements announcements_;
  Round round_;
  StoreCore store_;
  LivenessQuestions liveness_;
  boost::asio::steady_timer round_timer_, store_timer_;
  std::optional<Instant> store_wake_;
  std::map<StreamNumber, std::shared_ptr<StreamEnd>> streams_;
  std::set<StreamNumber> outside_;  // of those, streams of clients that are no nodes
  std::uint64_t streams_made_ = 0;
  StoreCallers callers_;
  std::function<void()> on_may_exit_;
  bool reported_may_exit_ = false;
  std::shared_ptr<StreamOwner*> self_ = std::make_shared<StreamOwner*>(this);  // posted tasks hold it weakly
  std::unique_ptr<StreamServer> server_;                                       // last: its streams speak to all of the above
};

}  // namespace

std::unique_ptr<Coordinator> Coordinator::create(Loop& loop, const Clock& clock, const Log& log, Options options) {
  return std::make_unique<CoordinatorShell>(loop, clock, log, options);
}

}  // namespace elrun::inline v0
