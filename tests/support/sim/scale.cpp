#include "tests/support/sim/scale.hpp"

#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <elrun/philox.hpp>

#include "launcher/supervise/supervisor.hpp"
#include "rendezvous/net/wire.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::sim {
namespace {

constexpr Duration patience = 1h;   // of simulated time, for any one phase
constexpr Duration backoff = 50ms;  // as rendezvous/net/client.cpp has it for the first attempt

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

double processor_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// What a copy of it takes from the heap. A sanitizer's heap says nothing.
template <class T>
std::uint64_t heap_bytes(const T& value) {
  const auto used = [] {
    const auto info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const std::size_t before = used();
  const T copy{value};
  return used() - before;
}

constexpr std::array<std::string_view, std::variant_size_v<NodeMessage>> from_nodes_names = {
    "Join",          "NodeAlive",       "Acknowledge",     "WorkerFailed",    "WorkersDone",     "JobFinished",
    "Progress",      "Leave",           "StoreCall",       "StoreCallerGone", "VerdictReceived", "MoreWorkers",
    "WorkersAreJob", "PeerUnreachable", "WorkersStarting", "AgentEnded",      "NotPrepared"};
constexpr std::array<std::string_view, std::variant_size_v<CoordinatorMessage>> to_nodes_names = {
    "Refused", "Waiting", "World", "Revoke", "Resumed", "Verdict", "StoreResult", "Prepare"};

template <class Variant, class Message, std::size_t at = 0>
constexpr std::size_t index_of() {
  if constexpr (std::is_same_v<std::variant_alternative_t<at, Variant>, Message>) return at;
  else return index_of<Variant, Message, at + 1>();
}

using NodeNumber = std::uint32_t;

/// Some thousand agents and one coordinator, with the cost of each message by the model: a smaller world than Simulation's, without faults and
/// checkers. A method per kind of event and of action; nothing outlives run().
class Fleet {
 public:
  Fleet(std::uint32_t nodes, const ScaleModel& model) : members_{nodes}, model_{model}, timeouts_{scale_timeouts(nodes)}, rng_{nodes} {
    agents_.reserve(nodes + 1);
    for (NodeNumber node = 0; node <= nodes; ++node) agents_.emplace_back(options_of(node));  // one more than the world takes: the spare
    round_ = std::make_unique<Round>(setup());
    clock_cost_ = cost_of_the_clock();
  }

  // Up to the first phase that fails, for the others begin where it ends.
  ScaleOutcome run() {
    ScaleOutcome outcome{members_, model_, {}};
    const auto ended = [&] {
      outcome.phases.push_back(end());
      return !outcome.phases.back().reached;
    };
    begin("to a world");
    for (NodeNumber node = 0; node < members_; ++node) start(node);
    until([this] { return served_ == members_; });
    if (ended()) return outcome;

    start(members_);
    for_a_while(1s);
    begin("one replaced by a spare");
    kill(members_ / 2);
    until([this] { return served_ == members_; });
    if (ended()) return outcome;

    for_a_while(1s);
    begin("the coordinator stopped for two limits of silence, and continued");
    served_ = members_;
    busy_until_ = now_ + 2 * timeouts_.heartbeat_limit;
    for_a_while(4 * timeouts_.heartbeat_limit);
    if (ended()) return outcome;

    begin("the coordinator lost, a fresh one at its name");
    replace_coordinator();
    until([this] { return served_ == members_; });
    ended();
    return outcome;
  }

 private:
  struct Agent {
    explicit Agent(launcher::SupervisorOptions options) : supervisor{std::move(options)} {}
    launcher::Supervisor supervisor;
    std::uint64_t stream = 0;  // 0: none
    bool alive = false, up = false;
    std::uint64_t timer = 0, workers_made = 0;
    std::optional<Instant> wake;
  };
  struct Stream {
    NodeNumber node = 0;
    std::uint64_t coordinator = 0;       // which one, counted
    bool open = false, joined = false;   // at the coordinator's end
    Instant up_newest{}, down_newest{};  // a stream keeps its order
  };
  struct AgentConnects {
    NodeNumber node;
  };
  struct StreamArrives {
    std::uint64_t stream;
  };
  struct StreamAccepted {
    std::uint64_t stream;
  };
  struct FromNodeOn {
    std::uint64_t stream;
    NodeMessage message;
  };
  struct ToNodeOn {
    std::uint64_t stream;
    CoordinatorMessage message;
  };
  struct BreaksAtCoordinator {
    std::uint64_t stream;
  };
  struct BreaksAtNode {
    std::uint64_t stream;
  };
  struct Beat {
    std::uint64_t stream;
  };
  struct WorkerIsGone {
    NodeNumber node;
    LocalRank worker;
    int signal;
  };
  struct NodeTimer {
    NodeNumber node;
    std::uint64_t epoch;
  };
  struct CoordinatorTimer {
    std::uint64_t epoch;
  };
  using Happening = std::variant<AgentConnects, StreamArrives, StreamAccepted, FromNodeOn, ToNodeOn, BreaksAtCoordinator, BreaksAtNode,
                                 Beat, WorkerIsGone, NodeTimer, CoordinatorTimer>;

  // --- phases
  void begin(std::string name) {
    phase_ = {};
    phase_.name = std::move(name);
    began_ = now_;
    served_ = 0;
    given_up_ = false;
  }
  ScalePhase end() {
    phase_.simulated = now_ - began_;
    phase_.round_bytes = heap_bytes(*round_);
    phase_.reached = served_ == members_ && !given_up_ && phase_.ended.empty();
    return std::exchange(phase_, {});
  }
  template <class Condition>
  void until(Condition reached) {
    while (!reached() && phase_.ended.empty() && !queue_.empty() && now_ < began_ + patience) next();
  }
  void for_a_while(Duration length) {
    const Instant end = now_ + length;
    while (!queue_.empty() && queue_.begin()->first.first <= end) next();
    now_ = end;
  }
  void next() {
    auto entry = queue_.extract(queue_.begin());
    now_ = entry.key().first;
    std::visit([this](auto& e) { on(e); }, entry.mapped());
  }
  void happen(Instant at, Happening what) { queue_.emplace(std::pair{std::max(at, now_), ++sequence_}, std::move(what)); }
  Duration random(Duration up_to) { return Duration{static_cast<Duration::rep>(rng_.below(static_cast<std::uint64_t>(up_to.count())))}; }
  Duration delay() { return model_.delay_min + random(model_.delay_spread); }

  // --- nodes
  [[nodiscard]] RoundOptions round_options() const {
    return {.nodes_min = members_, .nodes_max = members_, .last_call = 30s, .max_restarts = -1};
  }
  [[nodiscard]] static NodeId name_of(NodeNumber node) { return NodeId{fmt::format("node-{}.scale.example.internal", node)}; }
  [[nodiscard]] launcher::SupervisorOptions options_of(NodeNumber node) const {
    launcher::SupervisorOptions options;
    options.round = round_options();
    options.workers = 1;
    options.timeouts = timeouts_;
    options.run = RunId{"scale"};
    options.node = name_of(node);
    options.coordinator = "the-endpoint";
    return options;
  }
  void start(NodeNumber node) {
    agents_[node].alive = true;
    feed(node, launcher::Started{});
    connect(node);
  }
  // Not told to anybody but the coordinator's end of the stream.
  void kill(NodeNumber node) {
    Agent& agent = agents_[node];
    agent.alive = false;
    happen(now_ + delay(), BreaksAtCoordinator{agent.stream});
  }
  void connect(NodeNumber node) {
    if (connecting_ == model_.connecting_max) return connecting_later_.push_back(node);
    ++connecting_;
    streams_.push_back({node, coordinators_, false, false, now_, now_});
    agents_[node].stream = streams_.size() - 1;
    happen(now_ + delay(), StreamArrives{agents_[node].stream});
  }
  void on(const AgentConnects& e) { connect(e.node); }
  void on(const StreamAccepted& e) {
    --connecting_;
    if (!connecting_later_.empty()) {
      const NodeNumber next = connecting_later_.front();
      connecting_later_.pop_front();
      connect(next);
    }
    const NodeNumber node = streams_[e.stream].node;
    agents_[node].up = true;
    happen(now_ + timeouts_.heartbeat, Beat{e.stream});
    feed(node, launcher::LinkUp{});
  }
  void on(const Beat& e) {
    const NodeNumber node = streams_[e.stream].node;
    if (!speaks(node, e.stream)) return;
    send_up(node, NodeAlive{});
    happen(now_ + timeouts_.heartbeat, Beat{e.stream});
  }
  [[nodiscard]] bool speaks(NodeNumber node, std::uint64_t stream) const {
    return agents_[node].alive && agents_[node].up && agents_[node].stream == stream;
  }
  void on(ToNodeOn& e) {
    const NodeNumber node = streams_[e.stream].node;
    if (!speaks(node, e.stream)) return;
    const Generation before = agents_[node].supervisor.last_generation();
    const bool resumed = std::holds_alternative<Resumed>(e.message);
    given_up_ = given_up_ || (coordinators_ > 0 && std::holds_alternative<Revoke>(e.message));
    feed(node, launcher::FromCoordinator{std::move(e.message)});
    if (resumed || agents_[node].supervisor.last_generation() != before) ++served_;
  }
  void on(const BreaksAtNode& e) {
    const NodeNumber node = streams_[e.stream].node;
    if (!speaks(node, e.stream)) return;
    agents_[node].up = false;
    feed(node, launcher::LinkDown{{Code::unreachable, Remedy::retry, "connection reset by peer"}});
    happen(now_ + backoff / 2 + random(backoff / 2), AgentConnects{node});
  }
  void on(const WorkerIsGone& e) {
    if (agents_[e.node].alive) feed(e.node, launcher::WorkerEnded{e.worker, {.exit_code = 0, .signal = e.signal}});
  }
  void on(const NodeTimer& e) {
    Agent& agent = agents_[e.node];
    if (!agent.alive || agent.timer != e.epoch) return;
    agent.wake.reset();
    feed(e.node, launcher::Tick{});
  }
  void feed(NodeNumber node, const launcher::Event& event) {
    Agent& agent = agents_[node];
    for (const launcher::Action& action : agent.supervisor.on(event, now_)) {
      if (const auto* send = std::get_if<launcher::Send>(&action)) {
        if (agent.up) send_up(node, send->message);
      } else if (const auto* spawn = std::get_if<launcher::Spawn>(&action)) {
        feed(node, launcher::WorkerStarted{spawn->worker, static_cast<std::int64_t>(++agent.workers_made)});
      } else if (const auto* asked = std::get_if<launcher::SignalGroup>(&action); asked != nullptr && asked->number == SIGTERM) {
        happen(now_ + model_.stop_min + random(model_.stop_spread), WorkerIsGone{node, asked->worker, asked->number});
      } else if (const auto* over = std::get_if<launcher::Finish>(&action)) {
        agent.alive = false;
        phase_.ended = fmt::format("; node {} ended with {}: {}", node, over->exit_code, over->first_failure);
      }
    }
    const std::optional<Instant> at = agent.supervisor.wake_at();
    if (at == agent.wake) return;
    agent.wake = at;
    ++agent.timer;
    if (at) happen(*at, NodeTimer{node, agent.timer});
  }
  void send_up(NodeNumber node, NodeMessage message) {
    if (auto* join = std::get_if<Join>(&message)) {  // what the shell adds
      join->who = {name_of(node), node + 1};
      join->run = RunId{"scale"};
      join->version = "1.2.0";
      join->address = fmt::format("10.{}.{}.{}", node / 65536, node / 256 % 256, node % 256);
      join->master_port = 40000;
    }
    phase_.from_nodes[message.index()].add(to_wire_bytes(message).size());
    Stream& stream = streams_[agents_[node].stream];
    stream.up_newest = std::max(stream.up_newest, now_ + delay());
    happen(stream.up_newest, FromNodeOn{agents_[node].stream, std::move(message)});
  }

  // --- the coordinator
  [[nodiscard]] RoundSetup setup() const {
    RoundSetup setup;
    setup.run = RunId{"scale"};
    setup.version = "1.2.0";
    setup.timeouts = timeouts_;
    setup.lineage = {{members_, coordinators_ + 1}};
    return setup;
  }
  void replace_coordinator() {
    for (std::uint64_t stream = 0; stream < streams_.size(); ++stream) {
      if (streams_[stream].open) happen(now_ + delay(), BreaksAtNode{stream});
      streams_[stream].open = false;
    }
    ++coordinators_;
    ++timer_;
    round_ = std::make_unique<Round>(setup());
  }
  // When it gets to what comes now, and how long that takes it.
  void work(Duration cost) {
    busy_until_ = std::max(now_, busy_until_) + cost;
    phase_.modelled += cost;
  }
  void on(const StreamArrives& e) {
    if (streams_[e.stream].coordinator != coordinators_) return;
    work(model_.stream);
    streams_[e.stream].open = true;
    streams_[e.stream].down_newest = busy_until_ + delay();
    happen(streams_[e.stream].down_newest, StreamAccepted{e.stream});
  }
  void on(FromNodeOn& e) {
    Stream& stream = streams_[e.stream];
    if (!stream.open || stream.coordinator != coordinators_) return;
    work(std::holds_alternative<NodeAlive>(e.message) ? model_.sign_of_life : model_.message);
    if (!std::exchange(stream.joined, true)) step(StreamOpened{StreamNumber{e.stream}, false});  // the round hears of it with its Join
    if (!std::holds_alternative<StoreCall>(e.message)) step(FromNode{StreamNumber{e.stream}, std::move(e.message)});
  }
  void on(const BreaksAtCoordinator& e) {
    if (!std::exchange(streams_[e.stream].open, false)) return;
    work(model_.message);
    step(StreamBroken{StreamNumber{e.stream}});
  }
  void on(const CoordinatorTimer& e) {
    if (e.epoch == timer_) step(RoundTick{});
  }
  void step(const RoundEvent& event) {
    const Instant at = std::max(now_, busy_until_);
    const double before = processor_seconds();
    std::vector<RoundAction> actions = round_->step(event, at);
    const double taken = std::max(0.0, processor_seconds() - before - clock_cost_);
    ++phase_.steps;
    phase_.round_seconds += taken;
    phase_.longest_step_seconds = std::max(phase_.longest_step_seconds, taken);
    if (actions.size() > phase_.actions_max) phase_.actions_max = actions.size(), phase_.actions_bytes = heap_bytes(actions);
    for (RoundAction& action : actions) {
      if (auto* send = std::get_if<SendTo>(&action)) {
        send_down(send->stream.value(), std::move(send->message));
      } else if (const auto* close = std::get_if<CloseStream>(&action)) {
        streams_[close->stream.value()].open = false;
      } else if (const auto* wake = std::get_if<WakeAt>(&action)) {
        happen(wake->at, CoordinatorTimer{++timer_});
      }
    }
  }
  void send_down(std::uint64_t number, CoordinatorMessage message) {
    phase_.to_nodes[message.index()].add(to_wire_bytes(message).size());
    work(model_.message);
    Stream& stream = streams_[number];
    stream.down_newest = std::max(stream.down_newest, busy_until_ + delay());
    happen(stream.down_newest, ToNodeOn{number, std::move(message)});
  }
  static double cost_of_the_clock() {
    constexpr int times = 10'000;
    const double before = processor_seconds();
    for (int i = 0; i < times; ++i) (void)processor_seconds();
    return (processor_seconds() - before) / times;
  }

  const std::uint32_t members_;
  const ScaleModel model_;
  const Timeouts timeouts_;
  Rng rng_;
  Instant now_{}, began_{}, busy_until_{};
  std::map<std::pair<Instant, std::uint64_t>, Happening> queue_;
  std::uint64_t sequence_ = 0;
  std::vector<Agent> agents_;
  std::vector<Stream> streams_ = {{}};  // 0 is none
  std::uint32_t connecting_ = 0;
  std::deque<NodeNumber> connecting_later_;
  std::unique_ptr<Round> round_;
  std::uint64_t coordinators_ = 0, timer_ = 0;
  double clock_cost_ = 0;
  ScalePhase phase_;
  std::uint32_t served_ = 0;  // nodes that have what the phase is about
  bool given_up_ = false;     // a generation that ran was ended by a fresh coordinator
};

std::string count(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace

Timeouts scale_timeouts(std::uint32_t nodes) {
  Timeouts timeouts;
  timeouts.heartbeat = std::max<Duration>(timeouts.heartbeat, 1s * nodes / beats_per_second_max);
  timeouts.heartbeat_limit = 5 * timeouts.heartbeat;
  return timeouts;
}

void Traffic::add(std::size_t size) {
  ++messages;
  bytes += size;
  bytes_max = std::max<std::uint64_t>(bytes_max, size);
}

template <class Message>
const Traffic& ScalePhase::of() const {
  if constexpr (std::is_constructible_v<NodeMessage, Message>) return from_nodes[index_of<NodeMessage, Message>()];
  else return to_nodes[index_of<CoordinatorMessage, Message>()];
}

ScaleOutcome measure_scale(std::uint32_t nodes, const ScaleModel& model) { return Fleet{nodes, model}.run(); }

std::string describe(const ScaleOutcome& outcome) {
  const ScaleModel& m = outcome.model;
  const Timeouts timeouts = scale_timeouts(outcome.nodes);
  std::string text = fmt::format(
      "{} nodes of one worker, and a spare. The model: one processor; a stream costs {} us, a message {} us, a sign of life {} us; the network\n"
      "{} to {} us; {} connect at one time; signs of life every {:.3g} s, {:.0f} % of the processor\n",
      count(outcome.nodes), m.stream / 1us, m.message / 1us, m.sign_of_life / 1us, m.delay_min / 1us, (m.delay_min + m.delay_spread) / 1us,
      m.connecting_max, seconds(timeouts.heartbeat), 100 * outcome.nodes / seconds(timeouts.heartbeat) * seconds(m.sign_of_life));
  for (const ScalePhase& phase : outcome.phases) {
    const auto traffic = [&](const char* direction, const auto& kinds, const auto& names) {
      Traffic all;
      for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
        const Traffic& t = kinds[kind];
        if (t.messages == 0) continue;
        text += fmt::format("  {} {:<12} {:>11} messages, {:>5.2f} per node, {:>13} bytes, {:>6.1f} each, {} at most\n", direction,
                            names[kind], count(t.messages), static_cast<double>(t.messages) / outcome.nodes, count(t.bytes),
                            static_cast<double>(t.bytes) / static_cast<double>(t.messages), t.bytes_max);
        all.messages += t.messages, all.bytes += t.bytes;
      }
      text += fmt::format("  {} all          {:>11} messages, {:>5.2f} per node, {:>13} bytes, {:>6.1f} per node\n", direction,
                          count(all.messages), static_cast<double>(all.messages) / outcome.nodes, count(all.bytes),
                          static_cast<double>(all.bytes) / outcome.nodes);
    };
    text += fmt::format("\n{}{}\n", phase.name, phase.reached ? "" : ": NOT every node went on as it should" + phase.ended);
    traffic("from nodes", phase.from_nodes, from_nodes_names);
    traffic("to nodes  ", phase.to_nodes, to_nodes_names);
    text += fmt::format(
        "  simulated time {:.2f} s; coordinator, by the model {:.2f} s; Round, measured {:.3f} s of processor time in {} steps ({:.2f} us per node, the longest step {:.1f} ms)\n",
        seconds(phase.simulated), seconds(phase.modelled), phase.round_seconds, count(phase.steps),
        phase.round_seconds * 1e6 / outcome.nodes, phase.longest_step_seconds * 1e3);
    text += fmt::format("  Round keeps {:.0f} bytes per node; its longest answer, {} actions, takes {:.0f} bytes per node\n",
                        static_cast<double>(phase.round_bytes) / outcome.nodes, count(phase.actions_max),
                        static_cast<double>(phase.actions_bytes) / outcome.nodes);
  }
  return text;
}

std::vector<std::string> broken_bounds(const ScaleOutcome& outcome, const ScaleOutcome& tenth) {
  std::vector<std::string> broken;
  const auto at_most = [&](const ScalePhase& phase, std::string_view what, std::uint64_t value, std::uint64_t most) {
    if (value > most)
      broken.push_back(fmt::format("{} nodes, {}: {} {}, at most {}", count(outcome.nodes), phase.name, count(value), what, count(most)));
  };
  // Numbers and names that are a digit longer; no list of others.
  constexpr std::uint64_t a_few_digits = 16;
  const std::uint64_t each = outcome.nodes;
  for (std::size_t i = 0; i < outcome.phases.size(); ++i) {
    const ScalePhase& phase = outcome.phases[i];
    if (!phase.reached)
      broken.push_back(fmt::format("{} nodes, {}: not every node went on as it should{}", count(each), phase.name, phase.ended));
    at_most(phase, "Joins", phase.of<Join>().messages, i == 2 ? 0 : each);
    at_most(phase, "Worlds", phase.of<World>().messages, i < 2 ? each : 0);
    at_most(phase, "Revokes", phase.of<Revoke>().messages, i == 1 ? each : 0);
    at_most(phase, "Resumed", phase.of<Resumed>().messages, i == 3 ? each : 0);
    at_most(phase, "Waitings", phase.of<Waiting>().messages, i == 2 ? 0 : 2 * each);
    const auto same = [&](const auto& kinds, const auto& smaller, const auto& names) {
      for (std::size_t kind = 0; kind < kinds.size(); ++kind)
        if (smaller[kind].messages > 0)
          at_most(phase, fmt::format("bytes of a {}", names[kind]), kinds[kind].bytes_max, smaller[kind].bytes_max + a_few_digits);
    };
    if (i >= tenth.phases.size()) continue;
    same(phase.from_nodes, tenth.phases[i].from_nodes, from_nodes_names);
    same(phase.to_nodes, tenth.phases[i].to_nodes, to_nodes_names);
  }
  return broken;
}

}  // namespace elrun::sim
