/// \file Any bytes as messages of agents' streams, then whatever they mean fed to the round and its store: nothing may
/// crash, what was understood can be said again in the same bytes, and what the coordinator answers is understood.
/// Input: records of one byte (which stream, and what happens to it before), two of length, and a message.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/assert.hpp"
#include "lib/link/store_core.hpp"
#include "rendezvous/net/wire.hpp"
#include "rendezvous/round/round.hpp"

using namespace elrun;

namespace {

constexpr std::size_t records_max = 64;
constexpr std::uint64_t agents = 4;

void judge(const Seat& seat) {
  ELRUN_ASSERT(seat.group_rank < seat.nodes && seat.nodes <= nodes_limit);
  ELRUN_ASSERT(seat.base_rank < seat.world_size && seat.world_size <= nodes_limit * workers_per_node_limit);
}

void judge(ByteSpan bytes) {
  if (const auto message = node_message_from_bytes(bytes); message.ok() && *message) {
    const ByteVector again = to_wire_bytes(**message);
    const auto back = node_message_from_bytes(again);
    ELRUN_ASSERT(back.ok() && *back && (*back)->index() == (*message)->index() && to_wire_bytes(**back) == again);
    if (const auto* join = std::get_if<Join>(&**message); join != nullptr && join->seat) judge(*join->seat);
  }
  if (const auto message = coordinator_message_from_bytes(bytes); message.ok() && *message) {
    const ByteVector again = to_wire_bytes(**message);
    const auto back = coordinator_message_from_bytes(again);
    ELRUN_ASSERT(back.ok() && *back && (*back)->index() == (*message)->index() && to_wire_bytes(**back) == again);
    if (const auto* world = std::get_if<World>(&**message)) judge(world->seat);
  }
}

/// The coordinator without its sockets: streams come and go, the clock is the test's.
class Coordinator {
 public:
  explicit Coordinator(RoundSetup setup) : round_{std::move(setup)} {}

  void pass(Duration time) {
    now_ += time;
    deliver(store_.expire(now_));
    for (const Incarnation& who : std::exchange(asked_, {})) feed(FromHost{who});
    feed(RoundTick{});
  }
  void open(std::uint64_t agent) {
    if (streams_.contains(agent)) return;
    streams_[agent] = StreamNumber{++made_};
    feed(StreamOpened{streams_[agent], false, "10.0.0.1"});
  }
  void cut(std::uint64_t agent) {
    const auto stream = streams_.find(agent);
    if (stream == streams_.end()) return;
    const StreamNumber number = stream->second;
    drop(number);
    feed(StreamBroken{number});
  }
  void received(std::uint64_t agent, const NodeMessage& message) {
    const StreamNumber stream = streams_.at(agent);
    if (const auto* call = std::get_if<StoreCall>(&message)) {
      if (round_.joined(stream)) deliver(store_.call(StoreCaller{stream.value()}, call->request, now_));
    } else if (std::holds_alternative<StoreCallerGone>(message)) {
      store_.forget(StoreCaller{stream.value()});
    } else if (const auto* ended = std::get_if<AgentEnded>(&message)) {
      feed(FromGuard{*ended});
    } else {
      feed(FromNode{stream, message});
    }
  }

 private:
  void feed(const RoundEvent& event) {
    for (const RoundAction& action : round_.step(event, now_)) std::visit([this](const auto& a) { perform(a); }, action);
  }
  void perform(const SendTo& send) { understood(send.message); }
  void perform(const CloseStream& close) { drop(close.stream); }
  void perform(const AskHost& ask) { asked_.push_back(ask.who); }
  void perform(const WakeAt&) {}
  void perform(const BeginGeneration& begin) {
    ELRUN_ASSERT(begin.generation.number > newest_ || begin.adopted);
    newest_ = std::max(newest_, begin.generation.number);
    if (begin.adopted) deliver(store_.adopt_generation(begin.generation, static_cast<std::uint32_t>(begin.members.size())));
    else deliver(store_.begin_generation(begin.generation));
  }
  void perform(const EndGeneration& end) { deliver(store_.end_generation(end.why)); }
  void perform(const HandOver&) {}
  void perform(const Say&) {}
  static void deliver(const std::vector<StoreAnswer>& answers) {
    for (const StoreAnswer& answer : answers) understood(StoreResult{1, answer.reply});
  }
  static void understood(const CoordinatorMessage& message) {
    const auto heard = coordinator_message_from_bytes(to_wire_bytes(message));
    ELRUN_ASSERT(heard.ok() && *heard);
  }
  void drop(StreamNumber stream) {
    store_.forget(StoreCaller{stream.value()});
    std::erase_if(streams_, [&](const auto& s) { return s.second == stream; });
  }

  Round round_;
  StoreCore store_;
  std::vector<Incarnation> asked_;
  Instant now_{};
  std::map<std::uint64_t, StreamNumber> streams_;
  std::uint64_t made_ = 0, newest_ = 0;
};

enum Before : std::uint8_t { nothing, new_stream = 1 << 5, short_pause = 2 << 5, long_pause = 3 << 5, longer_pause = 4 << 5 };

void feed(ByteSpan bytes) {
  RoundSetup setup;
  setup.version = "0.1.0";
  Coordinator coordinator{setup};
  for (std::size_t record = 0; record < records_max && bytes.size() >= 3; ++record) {
    const auto what = static_cast<std::uint8_t>(bytes[0]);
    const std::uint64_t agent = what % agents;
    const std::size_t length = std::min(static_cast<std::size_t>(bytes[1]) | static_cast<std::size_t>(bytes[2]) << 8, bytes.size() - 3);
    const ByteSpan payload = bytes.subspan(3, length);
    bytes = bytes.subspan(3 + length);
    switch (what & 0xe0) {
      case new_stream: coordinator.cut(agent); break;
      case short_pause: coordinator.pass(300ms); break;
      case long_pause: coordinator.pass(6s); break;
      case longer_pause: coordinator.pass(700s); break;
      default: coordinator.pass(10ms);
    }
    judge(payload);
    const auto message = node_message_from_bytes(payload);
    coordinator.open(agent);
    if (message.ok() && *message) coordinator.received(agent, **message);
    else if (!message.ok()) coordinator.cut(agent);  // it speaks what no node speaks
  }
  coordinator.pass(1h);
}

std::string record(std::uint8_t what, std::string_view payload) {
  std::string text{static_cast<char>(what), static_cast<char>(payload.size() & 255), static_cast<char>(payload.size() >> 8)};
  return text.append(payload);
}
std::string record(std::uint8_t what, const NodeMessage& message) { return record(what, as_text(to_wire_bytes(message))); }
std::string record(std::uint8_t what, const CoordinatorMessage& message) { return record(what, as_text(to_wire_bytes(message))); }

const Generation first{1, {}};

Join join(std::uint8_t agent) {
  Join join;
  join.who = {NodeId{std::string(1, static_cast<char>('a' + agent))}, 7u + agent};
  join.run = RunId{"run"};
  join.version = "0.1.0";
  join.options = {.nodes_min = 2, .nodes_max = 3, .last_call = 0s, .max_restarts = 2};
  join.workers = 2;
  join.address = "10.0.0.1";
  join.master_port = 29500;
  join.hint = agent;
  join.topology = "zone/rack/host";
  join.stop_grace = agent * 10s;
  return join;
}

/// It held `seat` of a generation that another coordinator began.
Join resuming(std::uint8_t agent, const Generation& generation, Seat seat) {
  Join join = ::join(agent);
  join.last = generation;
  join.resuming = true;
  join.seat = seat;
  join.restarts = {3, 1};
  join.heard = generation.number + 2;
  join.has_trained = true;
  join.liveness = LivenessPort{"10.0.0.1", 41000};
  return join;
}

StoreCall call(StoreOp op, std::string key) {
  StoreCall call{.worker = 1, .request = {.id = 1, .op = op, .generation = first, .wait = 1s}};
  call.request.keys.push_back(std::move(key));
  call.request.count = gathers(op) ? 2 : 0;
  call.request.caller = gathers(op) ? 9 : 0;
  call.request.turn = gathers(op) ? 4 : 0;
  call.request.absent = op == StoreOp::watch;
  return call;
}

}  // namespace

std::vector<std::string> fuzz_examples() {
  const std::string world = record(0, join(0)) + record(1, join(1));
  std::vector<std::string> examples{world};
  const WorkerDeath death{NodeId{"node-1"},
                          first,
                          2,
                          0,
                          "pod-7",
                          4711,
                          3,
                          0,
                          1'700'000'000'123'456'789,
                          "train.py",
                          "/logs/error.json",
                          "ValueError: x",
                          "Traceback",
                          "last words",
                          "oom_kill"};
  // What members may say while their generation runs, and what becomes of it.
  const NodeMessage said[] = {NodeAlive{},        Acknowledge{first}, WorkerFailed{first, 0, 137, "signal 9 (SIGKILL)", true, 5ms, death},
                              WorkersDone{first}, JobFinished{first}, Progress{first, 5},
                              Leave{"a signal"},  StoreCallerGone{1}, VerdictReceived{}};
  for (const NodeMessage& message : said) examples.push_back(world + record(0, message) + record(1, message));
  for (StoreOp op = StoreOp::set; op <= StoreOp::relearned; op = static_cast<StoreOp>(static_cast<int>(op) + 1))
    examples.push_back(world + record(0, call(op, "key")) + record(1, call(op, "job/key")));
  StoreCall replay = call(StoreOp::set, "key");
  replay.request.replay = true;
  replay.request.version = 12;
  examples.push_back(world + record(0, replay));
  // A failure and the next generation; a third node for which it ends; a stream that breaks and is resumed.
  const std::string again = record(0, Acknowledge{first}) + record(1, Acknowledge{first}) + world;
  examples.push_back(world + record(0, WorkerFailed{first, 1, 3, "exit code 3", false, Duration{0}, {}}) + again);
  examples.push_back(world + record(2 | long_pause, join(2)) + again);
  examples.push_back(world + record(0 | new_stream, resuming(0, first, {0, 0, 2, 4, 1})));
  examples.push_back(world + record(1 | new_stream, join(1)) + record(0 | short_pause, NodeAlive{}));
  // A guard speaks of its agent, of one that is not here, and of one that was elsewhere since; then the stream ends.
  for (const AgentEnded& ended :
       {AgentEnded{join(1).who, first}, AgentEnded{{join(1).who.node, 3}, first}, AgentEnded{join(1).who, {40, {}}}})
    examples.push_back(world + record(0, ended) + record(1 | new_stream, join(1)) + record(0 | short_pause, NodeAlive{}));
  // Two nodes that a fresh coordinator did not see begin; the hash is that of nobody.
  const Generation elsewhere{40, {{5, 6}}};
  const std::string orphans = record(0, resuming(0, elsewhere, {0, 0, 2, 4, 77})) + record(1, resuming(1, elsewhere, {1, 2, 2, 4, 77}));
  examples.push_back(orphans);
  examples.push_back(orphans + record(0 | long_pause, Acknowledge{elsewhere}) + record(1, Acknowledge{elsewhere}) + world);
  // What the coordinator says.
  World told;
  told.generation = first;
  told.key.fill(std::byte{0xa5});
  told.seat = {1, 3, 2, 5, 77};
  told.address = "10.0.0.2";
  told.master_address = "10.0.0.1";
  told.master_port = 2;
  told.restarts = {4, 1};
  told.cause = "node c is lost";
  const Failure why{Code::peer_lost, Remedy::rejoin, "gone", Rank{3}, Rank{0}, first, "node-b"};
  StoreReply reply{.id = 8, .values = {ByteVector(3), {}}, .number = -1, .version = 5};
  const CoordinatorMessage heard[] = {told,
                                      Refused{why},
                                      Waiting{"for you", first},
                                      Waiting{"for etcd", first, false, Verdict{3, "report", {death}}},
                                      Revoke{first, why},
                                      Resumed{first, true},
                                      Verdict{3, "report", {death}},
                                      StoreResult{1, reply}};
  for (const CoordinatorMessage& message : heard) examples.push_back(record(0, message));
  return examples;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size <= 1 << 16) feed(std::as_bytes(std::span{data, size}));
  return 0;
}
