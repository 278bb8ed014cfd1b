// The idea: a process that stands still does nothing, and nothing else happens to it. So an event that comes due meanwhile comes due when the stall
// ends: timers first, then what came over connections in its order. Stalls are drawn as time goes on, by a source of chance for each node and cause.

#include "tests/support/sim/stalls.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <memory>
#include <mutex>
#include <numbers>
#include <optional>
#include <queue>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <elrun/philox.hpp>

#include "launcher/supervise/supervisor.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::sim {
namespace {

constexpr std::uint32_t nodes_of_a_world = 50;
constexpr Duration world_length = 10h;
constexpr int beats_in_limit = 5;                                   // as keep_alive_max_attempt has it
constexpr Duration delay_min = 100us, delay_spread = 1ms;           // of the network
constexpr Duration stop_min = 5ms, stop_spread = 20ms;              // of a worker that was asked to end
constexpr Duration backoff_min = 50ms, backoff_max = Duration{2s};  // as rendezvous/net/client.cpp has them

/// When one machine stands still. Asked with times that never go back.
class Machine {
 public:
  Machine(const std::vector<StallKind>& kinds, const StallSetup& setup, std::uint64_t world, std::uint32_t node) : hosts_{node == 0} {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      sources_.push_back({kinds[i], Rng{(setup.seed * 1'000'003 + world) * 4096 + node * 16 + i}, {}});
      sources_.back().gap = 24 * 3600e9 / (kinds[i].per_day * setup.times);
      sources_.back().next = Instant{} + sources_.back().wait();
    }
    look();
  }
  /// It stands still now, until then; `now`: it runs.
  Instant runs_at(Instant now, Duration limit, StallCount& count) {
    while (next_ <= now) {
      Source& source = *std::ranges::min_element(sources_, {}, &Source::next);
      const Duration length = source.length();
      ++count.stalls;
      count.may += length >= limit - 2 * limit / beats_in_limit - 5ms;
      count.must += !hosts_ && length > limit + limit / beats_in_limit;
      end_ = std::max(end_, source.next + length);
      source.next += source.wait();
      look();
    }
    return std::max(end_, now);
  }

 private:
  struct Source {
    StallKind kind;
    Rng rng;
    Instant next;
    double gap = 0;  // ns, the mean
    double unit() { return (static_cast<double>(rng.next()) + 0.5) * 0x1.0p-32; }
    Duration wait() { return Duration{static_cast<Duration::rep>(-std::log(unit()) * gap)}; }
    Duration length() {
      const double normal = std::sqrt(-2 * std::log(unit())) * std::cos(2 * std::numbers::pi * unit());
      const double ns = static_cast<double>(kind.median.count()) * std::exp(kind.sigma * normal);
      return Duration{
          static_cast<Duration::rep>(std::clamp(ns, static_cast<double>(kind.least.count()), static_cast<double>(kind.most.count())))};
    }
  };
  void look() {
    next_ = Instant::max();
    for (const Source& source : sources_) next_ = std::min(next_, source.next);
  }
  bool hosts_;
  std::vector<Source> sources_;
  Instant end_{}, next_{};
};

/// One coordinator and its nodes, for some hours.
class StallWorld {
 public:
  StallWorld(const Surroundings& surroundings, Duration limit, const StallSetup& setup, std::uint64_t number)
      : limit_{limit}, rng_{setup.seed ^ (number + 1) * 0x9e3779b97f4a7c15u} {
    timeouts_.heartbeat = limit / beats_in_limit;
    timeouts_.heartbeat_limit = limit;
    RoundSetup round;
    round.run = RunId{"stalls"};
    round.version = "1.2.0";
    round.timeouts = timeouts_;
    round.lineage = {{number + 1, 1}};
    round_ = std::make_unique<Round>(std::move(round));
    for (std::uint32_t node = 0; node < nodes_of_a_world; ++node) {
      agents_.push_back(std::make_unique<Agent>(options_of(node)));
      machines_.emplace_back(surroundings.stalls, setup, number, node);
    }
  }
  StallCount run(Duration length) {
    for (std::uint32_t node = 0; node < nodes_of_a_world; ++node) {
      feed(node, launcher::Started{});
      connect(node);
    }
    while (!queue_.empty() && queue_.top().at < Instant{} + length && count_.wrong.empty()) next();
    return count_;
  }

 private:
  enum class Kind : std::uint8_t {
    beat,
    connects_again,
    attempt_is_over,
    agent_timer,
    round_timer,
    beat_arrives,
    stream_arrives,
    up,
    up_breaks,
    accepted,
    down,
    down_breaks,
    worker_ends
  };
  static constexpr bool is_timer(Kind kind) { return kind <= Kind::round_timer; }
  static constexpr bool is_of_coordinator(Kind kind) { return kind >= Kind::round_timer && kind <= Kind::up_breaks; }
  struct Entry {
    Instant at;
    std::uint64_t order = 0;  // of those that come due at one time
    Kind kind{};
    std::uint32_t node = 0;
    std::uint64_t number = 0;  // of the stream, the timer or the worker
    friend bool operator<(const Entry& a, const Entry& b) {
      return std::pair{b.at, b.order} < std::pair{a.at, a.order};
    }  // the first on top
  };
  struct Agent {
    explicit Agent(launcher::SupervisorOptions options) : supervisor{std::move(options)} {}
    launcher::Supervisor supervisor;
    std::uint64_t stream = 0;  // 0: none
    bool up = false;
    std::uint64_t timer = 0, workers_made = 0;
    std::optional<Instant> wake;
    Duration backoff = backoff_min;
    int unanswered = 0;
    std::string last_reason;
  };
  struct Stream {
    std::uint32_t node = 0;
    bool is_open = false;                // at the coordinator's end
    Instant up_newest{}, down_newest{};  // a stream keeps its order
  };

  void happen(Instant at, Kind kind, std::uint32_t node, std::uint64_t number) {
    queue_.push({std::max(at, now_), (is_timer(kind) ? 0 : std::uint64_t{1} << 62) + ++sequence_, kind, node, number});
  }
  void next() {
    Entry e = queue_.top();
    queue_.pop();
    now_ = e.at;
    if (const Instant at = machines_[is_of_coordinator(e.kind) ? 0 : e.node].runs_at(now_, limit_, count_); at > now_) {
      e.at = at;
      return queue_.push(e);
    }
    switch (e.kind) {
      case Kind::beat: return beat(e.node, e.number);
      case Kind::connects_again: return connect(e.node);
      case Kind::attempt_is_over:
        if (agents_[e.node]->stream == e.number && !agents_[e.node]->up) break_line(e.node, "no answer");
        return;
      case Kind::agent_timer:
        if (agents_[e.node]->timer != e.number) return;
        agents_[e.node]->wake.reset();
        return feed(e.node, launcher::Tick{});
      case Kind::round_timer:
        if (round_timer_ == e.number) step(RoundTick{});
        return;
      case Kind::beat_arrives:
        if (!streams_[e.number].is_open) return;
        ++count_.beats;
        agents_[e.node]->unanswered = 0;
        return step(FromNode{StreamNumber{e.number}, NodeAlive{}});
      case Kind::stream_arrives:
        streams_[e.number].is_open = true;
        send(e.number, streams_[e.number].down_newest, Kind::accepted);
        return step(StreamOpened{StreamNumber{e.number}, e.node == 0});
      case Kind::up: {
        NodeMessage message = std::get<NodeMessage>(take(e.order));
        if (streams_[e.number].is_open) step(FromNode{StreamNumber{e.number}, std::move(message)});
        return;
      }
      case Kind::up_breaks:
        if (std::exchange(streams_[e.number].is_open, false)) step(StreamBroken{StreamNumber{e.number}});
        return;
      case Kind::accepted: return accepted(e.node, e.number);
      case Kind::down: {
        CoordinatorMessage message = std::get<CoordinatorMessage>(take(e.order));
        if (agents_[e.node]->stream == e.number) feed(e.node, launcher::FromCoordinator{std::move(message)});
        return;
      }
      case Kind::down_breaks:
        if (agents_[e.node]->stream == e.number) line_is_down(e.node, "it ended the stream");
        return;
      case Kind::worker_ends:
        return feed(e.node, launcher::WorkerEnded{LocalRank{static_cast<std::uint32_t>(e.number)}, {.exit_code = 0, .signal = SIGTERM}});
    }
  }
  Duration random(Duration up_to) { return Duration{static_cast<Duration::rep>(rng_.below(static_cast<std::uint64_t>(up_to.count())))}; }
  void send(std::uint64_t stream, Instant& newest, Kind kind) {
    const std::uint32_t node = streams_[stream].node;
    newest = std::max(newest, now_ + (node == 0 ? Duration{0} : delay_min + random(delay_spread)));
    happen(newest, kind, node, stream);
  }
  template <class Message>
  void send(std::uint64_t stream, Instant& newest, Kind kind, Message message) {
    send(stream, newest, kind);
    messages_.emplace((std::uint64_t{1} << 62) + sequence_, std::move(message));
  }
  std::variant<NodeMessage, CoordinatorMessage> take(std::uint64_t order) { return std::move(messages_.extract(order).mapped()); }

  // --- an agent
  [[nodiscard]] static NodeId name_of(std::uint32_t node) { return NodeId{fmt::format("node{}", node)}; }
  [[nodiscard]] launcher::SupervisorOptions options_of(std::uint32_t node) const {
    launcher::SupervisorOptions options;
    options.round = {.nodes_min = 1, .nodes_max = nodes_of_a_world, .last_call = 1s, .max_restarts = -1};
    options.workers = 1;
    options.timeouts = timeouts_;
    options.run = RunId{"stalls"};
    options.node = name_of(node);
    options.coordinator = "the-endpoint";
    return options;
  }
  void connect(std::uint32_t node) {
    streams_.push_back({node, false, now_, now_});
    Agent& agent = *agents_[node];
    agent.stream = streams_.size() - 1;
    agent.unanswered = 0;
    send(agent.stream, streams_[agent.stream].up_newest, Kind::stream_arrives);
    happen(now_ + limit_, Kind::attempt_is_over, node, agent.stream);
  }
  void accepted(std::uint32_t node, std::uint64_t stream) {
    Agent& agent = *agents_[node];
    if (agent.stream != stream) return;
    agent.up = true;
    agent.backoff = backoff_min;
    agent.last_reason.clear();
    if (node != 0) happen(now_ + timeouts_.heartbeat, Kind::beat, node, stream);
    feed(node, launcher::LinkUp{});
  }
  void beat(std::uint32_t node, std::uint64_t stream) {
    Agent& agent = *agents_[node];
    if (agent.stream != stream || !agent.up) return;
    if (agent.unanswered * timeouts_.heartbeat > limit_) return break_line(node, "it answers nothing");
    ++agent.unanswered;
    send(stream, streams_[stream].up_newest, Kind::beat_arrives);
    happen(now_ + timeouts_.heartbeat, Kind::beat, node, stream);
  }
  void break_line(std::uint32_t node, const std::string& why) {
    const std::uint64_t stream = agents_[node]->stream;
    send(stream, streams_[stream].up_newest, Kind::up_breaks);
    line_is_down(node, why);
  }
  void line_is_down(std::uint32_t node, const std::string& why) {
    Agent& agent = *agents_[node];
    agent.up = false;
    agent.stream = 0;
    happen(now_ + agent.backoff / 2 + random(agent.backoff / 2), Kind::connects_again, node, 0);
    agent.backoff = std::min(agent.backoff * 2, backoff_max);
    if (std::exchange(agent.last_reason, why) != why) feed(node, launcher::LinkDown{{Code::unreachable, Remedy::retry, why}});
  }
  void feed(std::uint32_t node, const launcher::Event& event) {
    Agent& agent = *agents_[node];
    for (const launcher::Action& action : agent.supervisor.on(event, now_)) {
      if (const auto* say = std::get_if<launcher::Send>(&action)) {
        if (agent.up) send_up(node, say->message);
      } else if (const auto* spawn = std::get_if<launcher::Spawn>(&action)) {
        feed(node, launcher::WorkerStarted{spawn->worker, static_cast<std::int64_t>(++agent.workers_made)});
      } else if (const auto* asked = std::get_if<launcher::SignalGroup>(&action); asked != nullptr && asked->number == SIGTERM) {
        happen(now_ + stop_min + random(stop_spread), Kind::worker_ends, node, asked->worker.value());
      } else if (const auto* over = std::get_if<launcher::Finish>(&action)) {
        count_.wrong = fmt::format("the agent of node {} ended with {}: {}", node, over->exit_code, over->first_failure);
      }
    }
    const std::optional<Instant> at = agent.supervisor.wake_at();
    if (at == agent.wake) return;
    agent.wake = at;
    ++agent.timer;
    if (at) happen(*at, Kind::agent_timer, node, agent.timer);
  }
  void send_up(std::uint32_t node, NodeMessage message) {
    if (auto* join = std::get_if<Join>(&message)) {  // what the shell adds
      join->who = {name_of(node), node + 1};
      join->run = RunId{"stalls"};
      join->version = "1.2.0";
      join->address = fmt::format("10.0.0.{}", node);
      join->master_port = 40000;
      join->heartbeat = timeouts_.heartbeat;
    }
    const std::uint64_t stream = agents_[node]->stream;
    send(stream, streams_[stream].up_newest, Kind::up, std::move(message));
  }

  // --- the coordinator
  void step(const RoundEvent& event) {
    for (RoundAction& action : round_->step(event, now_)) {
      if (auto* say = std::get_if<SendTo>(&action)) {
        const std::uint64_t stream = say->stream.value();
        if (streams_[stream].is_open) send(stream, streams_[stream].down_newest, Kind::down, std::move(say->message));
      } else if (const auto* close = std::get_if<CloseStream>(&action)) {
        Stream& stream = streams_[close->stream.value()];
        if (std::exchange(stream.is_open, false)) send(close->stream.value(), stream.down_newest, Kind::down_breaks);
      } else if (const auto* wake = std::get_if<WakeAt>(&action)) {
        happen(wake->at, Kind::round_timer, 0, ++round_timer_);
      } else if (std::holds_alternative<BeginGeneration>(action)) {
        ++count_.generations;
      } else if (const auto* told = std::get_if<elrun::Say>(&action);
                 told != nullptr && told->text.starts_with("node node") && told->text.find(" is lost: ") != std::string::npos) {
        lost(told->text);
      }
    }
  }
  void lost(const std::string& text) {
    if (text.find("its stream broke") != std::string::npos) return void(++count_.unreturned);
    ++count_.silent;
    if (text.find("nothing was heard of it") == std::string::npos) count_.wrong = text;
  }

  const Duration limit_;
  Timeouts timeouts_;
  Rng rng_;
  Instant now_{};
  std::priority_queue<Entry> queue_;
  std::unordered_map<std::uint64_t, std::variant<NodeMessage, CoordinatorMessage>> messages_;  // under way, by order
  std::uint64_t sequence_ = 0, round_timer_ = 0;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<Machine> machines_;
  std::vector<Stream> streams_ = {{}};  // 0 is none
  std::unique_ptr<Round> round_;
  StallCount count_;
};

}  // namespace

const std::vector<Surroundings>& all_surroundings() {
  static const StallKind scheduler{"the scheduler, a noisy neighbour", 24 * 60, 40ms, 0.8, 10ms, 200ms};
  static const StallKind storage{"storage, reclaim of memory", 3, 450ms, 0.5, 200ms, 1s};
  static const std::vector<Surroundings> all{
      {"nobody pauses the machine", {scheduler, storage}},
      {"moved as by Google", {scheduler, storage, {"live migration", 1.0 / 14, 50ms, 0.77, 5ms, 30s}}},
      {"paused as by Azure",
       {scheduler,
        storage,
        {"live migration, an update of the host", 1.0 / 14, 1s, 0.98, 50ms, 30s},
        {"an update that keeps the memory", 1.0 / 547, 30s, 0.1, 20s, 40s}}},
  };
  return all;
}

StallCount count_false_losses(const Surroundings& surroundings, Duration limit, const StallSetup& setup) {
  const double hours = static_cast<double>(setup.node_hours) / nodes_of_a_world;
  const double hours_of_a_world = std::chrono::duration<double, std::ratio<3600>>(world_length).count();
  const auto worlds = static_cast<std::uint64_t>(std::ceil(hours / hours_of_a_world));
  StallCount all;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    for (std::uint64_t world = next++; world < worlds; world = next++) {
      const double left = std::min(hours - static_cast<double>(world) * hours_of_a_world, hours_of_a_world);
      const StallCount one = StallWorld{surroundings, limit, setup, world}.run(Duration{static_cast<Duration::rep>(left * 3600e9)});
      const std::lock_guard lock{mutex};
      all.silent += one.silent, all.unreturned += one.unreturned, all.may += one.may, all.must += one.must, all.stalls += one.stalls;
      all.generations += one.generations, all.beats += one.beats;
      if (!one.wrong.empty() && (all.wrong.empty() || one.wrong < all.wrong)) all.wrong = one.wrong;
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < setup.threads; ++i) threads.emplace_back(work);
  threads.clear();
  return all;
}

}  // namespace elrun::sim
