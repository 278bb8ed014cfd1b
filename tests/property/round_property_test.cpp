// A round among agents that crash, pause, reconnect, leave, fail and come back, on a network that delays, by seed.
// The checkers stand outside: they see what agents see, and know nothing of how the round decides.

#include <deque>
#include <memory>

#include <fmt/format.h>

#include "rendezvous/round/round.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

using Milliseconds = std::chrono::milliseconds;

// One agent's process. Its workers are a generation that it runs, or has to end.
struct Agent {
  std::string name;
  std::uint64_t incarnation = 1;
  bool up = false;                     // the process lives
  bool frozen = false;                 // lives, but says nothing (a pause, a cut line)
  std::optional<StreamNumber> stream;  // as it sees it
  Generation last{};
  Seat seat;                            // in `last`
  bool running = false;                 // workers of `last` run
  std::optional<Instant> workers_gone;  // revoked: when the last of them has ended
  Instant next_beat{}, next_connect{};
  std::uint64_t acknowledged = 0;  // newest number whose end it acknowledged, or whose workers died with it
  bool finished = false;
};

class Simulation {
 public:
  Simulation(Rng& rng, RoundOptions options) : rng_{rng}, options_{options}, round_{make_round()} {
    options_.max_restarts = 1'000'000;  // budgets have tests of their own; here the job must not end of its failures
    for (int i = 0; i < 5; ++i) agents_.push_back({.name = fmt::format("node{}", i)});
  }

  void run(Duration duration, bool faults) {
    const Instant end = now_ + duration;
    while (now_ < end) {
      now_ += Milliseconds(1 + rng_.below(40));
      if (faults) some_fault();
      deliver();
      for (Agent& agent : agents_) act(agent);
      if (wake_ && *wake_ <= now_) {
        wake_.reset();
        feed(RoundTick{});
      }
      check();
    }
  }
  void heal() {
    for (Agent& agent : agents_) {
      agent.frozen = false;
      if (!agent.up) start(agent);
    }
  }
  [[nodiscard]] std::size_t running() const {
    std::size_t count = 0;
    const auto current = round_.running();
    for (const Agent& agent : agents_) count += agent.running && current && agent.last == *current && !agent.workers_gone;
    return count;
  }
  [[nodiscard]] std::uint64_t generations() const { return worlds_.size(); }

 private:
  static RoundSetup setup() {
    RoundSetup out;
    out.version = "1.0.0";
    out.run = RunId{"run"};
    out.lineage = {{1, 2}};
    return out;
  }
  static Round make_round() { return Round{setup()}; }

  // --- the network: deliveries arrive in order per stream, late ---
  struct Delivery {
    Instant at;
    StreamNumber stream;
    std::variant<NodeMessage, StreamOpened, StreamBroken, CoordinatorMessage, CloseStream> content;
  };
  template <class Content>
  void post(std::deque<Delivery>& box, StreamNumber stream, Content content) {
    Instant at = now_ + Milliseconds(rng_.below(60));
    for (const Delivery& delivery : box)
      if (delivery.stream == stream) at = std::max(at, delivery.at);
    box.push_back({at, stream, std::move(content)});
  }
  // What is sent to a frozen agent waits in its socket.
  [[nodiscard]] bool waits(StreamNumber stream) const {
    return std::any_of(agents_.begin(), agents_.end(), [&](const Agent& agent) { return agent.frozen && agent.stream == stream; });
  }
  std::vector<Delivery> due(std::deque<Delivery>& box, bool to_agents) {
    std::vector<Delivery> out;
    for (auto at = box.begin(); at != box.end();)
      if (at->at <= now_ && !(to_agents && waits(at->stream))) out.push_back(std::move(*at)), at = box.erase(at);
      else ++at;
    std::stable_sort(out.begin(), out.end(), [](const Delivery& a, const Delivery& b) { return a.at < b.at; });
    return out;
  }
  void deliver() {
    for (Delivery& delivery : due(to_round_, false)) {
      if (const auto* message = std::get_if<NodeMessage>(&delivery.content)) feed(FromNode{delivery.stream, *message});
      if (const auto* opened = std::get_if<StreamOpened>(&delivery.content)) feed(*opened);
      if (const auto* broken = std::get_if<StreamBroken>(&delivery.content)) feed(*broken);
    }
    for (Delivery& delivery : due(to_agents_, true))
      for (Agent& agent : agents_) {
        if (agent.stream != delivery.stream || !agent.up) continue;
        if (const auto* message = std::get_if<CoordinatorMessage>(&delivery.content)) hear(agent, *message);
        else agent.stream.reset(), agent.next_connect = now_ + Milliseconds(50);
        break;
      }
  }
  void feed(const RoundEvent& event) {
    for (RoundAction& action : round_.step(event, now_)) {
      if (const auto* begin = std::get_if<BeginGeneration>(&action)) began(*begin);
      if (auto* send = std::get_if<SendTo>(&action)) {
        if (const auto* world = std::get_if<World>(&send->message))
          REQUIRE(worlds_.at(world->generation.number).generation == world->generation);
        post(to_agents_, send->stream, std::move(send->message));
      }
      if (const auto* close = std::get_if<CloseStream>(&action)) post(to_agents_, close->stream, *close);
      if (const auto* wake = std::get_if<WakeAt>(&action)) wake_ = wake->at;
    }
  }

  // --- agents ---
  void say(Agent& agent, NodeMessage message) {
    if (agent.stream) post(to_round_, *agent.stream, std::move(message));
  }
  void join(Agent& agent) {
    Join message;
    message.who = {NodeId{agent.name}, agent.incarnation};
    message.run = RunId{"run"};
    message.version = "1.0.0";
    message.options = options_;
    message.address = agent.name;
    message.last = agent.last;
    message.resuming = agent.running;
    if (agent.running && !agent.workers_gone) message.seat = agent.seat;
    say(agent, message);
  }
  void start(Agent& agent) {
    agent = {.name = agent.name,
             .incarnation = agent.incarnation + 1,
             .up = true,
             .next_beat = now_,
             .next_connect = now_,
             .acknowledged = agent.acknowledged};
  }
  void die(Agent& agent) {
    agent.up = false;
    if (agent.running) agent.acknowledged = agent.last.number;  // its workers die with it
    agent.running = false;
    hang_up(agent);
  }
  void hang_up(Agent& agent) {
    if (agent.stream) post(to_round_, *agent.stream, StreamBroken{*agent.stream});
    agent.stream.reset();
    agent.next_connect = now_ + Milliseconds(50 + rng_.below(300));
  }
  void act(Agent& agent) {
    if (!agent.up || agent.frozen) return;
    if (!agent.stream && now_ >= agent.next_connect) {
      agent.stream = StreamNumber{++streams_};
      post(to_round_, *agent.stream, StreamOpened{*agent.stream});
      join(agent);
    }
    if (now_ >= agent.next_beat) {
      agent.next_beat = now_ + 1s;
      say(agent, NodeAlive{});
    }
    if (agent.workers_gone && now_ >= *agent.workers_gone) {
      agent.workers_gone.reset();
      agent.running = false;
      agent.acknowledged = agent.last.number;
      say(agent, Acknowledge{agent.last});
      join(agent);
    }
  }
  void hear(Agent& agent, const CoordinatorMessage& message) {
    if (const auto* world = std::get_if<World>(&message)) {
      if (agent.running || world->generation.number <= agent.last.number) return;
      REQUIRE(worlds_.at(world->generation.number).members.at(world->seat.group_rank).node.value() == agent.name);
      agent.seat = world->seat;
      agent.last = world->generation;
      agent.running = true;
    }
    if (const auto* revoke = std::get_if<Revoke>(&message)) {
      if (revoke->generation != agent.last) return;
      if (!agent.running) say(agent, Acknowledge{agent.last});
      else if (!agent.workers_gone) agent.workers_gone = now_ + Milliseconds(rng_.below(400));
    }
    REQUIRE_FALSE(std::holds_alternative<Verdict>(message));
    // Over-subscription and every kind of return are no errors.
    if (const auto* refused = std::get_if<Refused>(&message)) FAIL(refused->failure.what);
  }

  void some_fault() {
    if (!rng_.chance(0.05)) return;
    Agent& agent = agents_[rng_.below(agents_.size())];
    switch (rng_.below(8)) {
      case 0: return agent.up ? die(agent) : start(agent);
      case 1:
      case 2: return agent.up ? void() : start(agent);
      case 3: return agent.up ? hang_up(agent) : void();
      case 4: return void(agent.frozen = !agent.frozen);
      case 5:
        if (agent.up && agent.running && !agent.frozen)
          say(agent, WorkerFailed{agent.last, 0, 1, "exit code 1", rng_.chance(0.5), Duration{0}, {}});
        return;
      case 6:
        if (agent.up && !agent.frozen && rng_.chance(0.3)) say(agent, Leave{"signal 15 (SIGTERM)"}), die(agent);
        return;
      default:
        if (agent.up && agent.running && !agent.frozen)
          say(agent, rng_.chance(0.9) ? NodeMessage{Progress{agent.last, 1}} : NodeMessage{NodeAlive{}});
    }
  }

  // --- checkers ---
  // Generations only grow, and one generation has one membership.
  void began(const BeginGeneration& world) {
    const std::uint64_t number = world.generation.number;
    REQUIRE_FALSE(worlds_.contains(number));
    if (!worlds_.empty()) REQUIRE(number > worlds_.rbegin()->first);
    REQUIRE(world.members.size() >= options_.nodes_min);
    REQUIRE(world.members.size() <= options_.nodes_max);
    // No member of the new generation still acts for an older one: it acknowledged, or its process ended.
    for (const Member& member : world.members)
      for (const Agent& agent : agents_)
        if (agent.name == member.node.value() && agent.up && agent.running && shares_incarnation(agent)) {
          INFO("generation " << number << " began while " << agent.name << " ran " << agent.last.number);
          REQUIRE(agent.acknowledged >= agent.last.number);
        }
    worlds_.emplace(number, world);
  }
  // The round may not have heard yet that an incarnation ended and another began; then the world goes to a stream that is gone.
  [[nodiscard]] bool shares_incarnation(const Agent& agent) const { return agent.stream.has_value(); }
  void check() {
    // Two agents that run the same number run the same generation, each with a place of its own in it.
    for (const Agent& agent : agents_) {
      if (!agent.running) continue;
      const BeginGeneration& world = worlds_.at(agent.last.number);
      REQUIRE(world.generation == agent.last);
      REQUIRE(std::count_if(world.members.begin(), world.members.end(), [&](const Member& m) { return m.node.value() == agent.name; }) ==
              1);
    }
  }

  Rng& rng_;
  RoundOptions options_;
  Round round_;
  Instant now_{};
  std::optional<Instant> wake_;
  std::vector<Agent> agents_;
  std::deque<Delivery> to_round_, to_agents_;
  std::map<std::uint64_t, BeginGeneration> worlds_;
  std::uint64_t streams_ = 0;
};

}  // namespace

TEST_CASE("whatever happens to nodes, generations fence; when it stops, all work again", "[round][property]") {
  std::uint64_t generations = 0;
  for_all_seeds(400, [&](Rng& rng) {
    RoundOptions options;
    options.nodes_min = 1 + static_cast<std::uint32_t>(rng.below(3));
    options.nodes_max = options.nodes_min + static_cast<std::uint32_t>(rng.below(3));
    options.last_call = 2s;
    Simulation simulation{rng, options};
    simulation.run(90s, true);
    simulation.heal();
    simulation.run(180s, false);  // growth after growth, each settled for up to 32 s
    CHECK(simulation.running() == options.nodes_max);
    generations += simulation.generations();
  });
  CHECK((std::getenv("ELRUN_SEED") != nullptr || generations > seeds_of(400) * 5));  // else nothing much was simulated
}

}  // namespace elrun::test
