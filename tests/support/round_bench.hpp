#pragma once
/// \file A round on a bench: streams are numbers, time moves by hand, what it sends is kept.

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/round/round.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {

inline RoundSetup bench_setup() {
  RoundSetup setup;
  setup.version = "1.2.0";
  setup.run = RunId{"run"};
  setup.lineage = {{0x1111, 0x2222}};
  setup.secret.fill(std::byte{7});
  return setup;
}

class RoundBench {
 public:
  explicit RoundBench(RoundOptions round_options, RoundSetup setup = bench_setup()) : options{round_options}, round{std::move(setup)} {}

  /// Everything the round sent to a stream, oldest first.
  std::map<StreamNumber, std::vector<CoordinatorMessage>> sent;
  std::set<StreamNumber> open;    ///< Streams of the nodes; each says every second that it lives.
  std::set<StreamNumber> silent;  ///< Of these, the ones that do not.
  std::vector<std::string> said;
  std::size_t handed_over = 0;  ///< How often HandOver was given.
  std::vector<AskHost> asked;
  std::vector<Generation> begun;
  std::vector<Member> members;  ///< Of the newest generation.
  RoundOptions options;
  Round round;
  Instant now{};

  void feed(const RoundEvent& event) {
    for (RoundAction& action : round.step(event, now)) perform(action);
  }
  /// Time passes; ticks and signs of life happen when they are due.
  void pass(Duration duration) {
    const Instant end = now + duration;
    while (true) {
      const Instant sign = last_sign_ + 1s;
      const Instant next = wake_ ? std::min(*wake_, sign) : sign;
      if (next > end) break;
      now = std::max(now, next);
      if (next == sign) {
        last_sign_ = sign;
        for (const StreamNumber stream : std::set{open})
          if (!silent.contains(stream)) feed(FromNode{stream, NodeAlive{}});
      }
      if (wake_ && *wake_ <= now) {
        wake_.reset();
        feed(RoundTick{});
      }
    }
    now = end;
  }
  StreamNumber open_stream(bool in_process = false) {
    const StreamNumber stream{next_stream_++};
    open.insert(stream);
    feed(StreamOpened{stream, in_process, in_process ? "" : "10.0.0.7"});
    return stream;
  }
  [[nodiscard]] Join a_join(const std::string& node, std::uint64_t incarnation = 1) const {
    Join join;
    join.who = {NodeId{node}, incarnation};
    join.run = RunId{"run"};
    join.version = "1.0.3";
    join.options = options;
    join.workers = 2;
    join.address = node + ".local";
    join.master_port = 4000;
    join.may_coordinate = true;
    return join;
  }
  StreamNumber join(const Join& message) {
    const StreamNumber stream = open_stream();
    feed(FromNode{stream, message});
    return stream;
  }
  StreamNumber join(const std::string& node, std::uint64_t incarnation = 1) { return join(a_join(node, incarnation)); }
  /// Of the agent in the coordinator's own process.
  StreamNumber join_in_process(const std::string& node) {
    const StreamNumber stream = open_stream(true);
    feed(FromNode{stream, a_join(node)});
    return stream;
  }
  [[nodiscard]] Join a_resuming_join(const std::string& node, const World& held, std::uint64_t incarnation = 1) const {
    Join join = a_join(node, incarnation);
    join.last = held.generation;
    join.resuming = true;
    join.seat = held.seat;
    join.restarts = held.restarts;
    join.coordinated_by = held.coordinated_by;
    return join;
  }
  /// The agent came back after its stream broke; its workers still run in that world.
  StreamNumber resume(const std::string& node, const World& held, std::uint64_t incarnation = 1) {
    return join(a_resuming_join(node, held, incarnation));
  }
  void say(StreamNumber stream, const NodeMessage& message) { feed(FromNode{stream, message}); }
  void break_stream(StreamNumber stream) {
    open.erase(stream);
    feed(StreamBroken{stream});
  }
  /// The agent has ended its workers of the generation, and joins the next one.
  void acknowledge(StreamNumber stream, const std::string& node, std::uint64_t incarnation = 1) {
    const Generation over = generation();
    say(stream, Acknowledge{over});
    Join again = a_join(node, incarnation);
    again.last = over;
    say(stream, again);
  }
  [[nodiscard]] Generation generation() const { return begun.empty() ? Generation{} : begun.back(); }

  /// The last message of this type to the stream, if there was one.
  template <class T>
  [[nodiscard]] std::optional<T> last(StreamNumber stream) const {
    const auto at = sent.find(stream);
    if (at == sent.end()) return {};
    for (auto m = at->second.rbegin(); m != at->second.rend(); ++m)
      if (const T* message = std::get_if<T>(&*m)) return *message;
    return {};
  }
  template <class T>
  [[nodiscard]] std::size_t count(StreamNumber stream) const {
    const auto at = sent.find(stream);
    if (at == sent.end()) return 0;
    return static_cast<std::size_t>(
        std::count_if(at->second.begin(), at->second.end(), [](const CoordinatorMessage& m) { return std::holds_alternative<T>(m); }));
  }
  /// Names in group-rank order, "a b c"; empty when this stream has no world of the newest generation.
  [[nodiscard]] std::string world(StreamNumber stream) const {
    const auto world = last<World>(stream);
    if (!world || world->generation != generation()) return {};
    std::string names;
    for (const Member& member : members) names += (names.empty() ? "" : " ") + member.node.value();
    return names;
  }

 private:
  void perform(RoundAction& action) {
    if (auto* to = std::get_if<SendTo>(&action)) sent[to->stream].push_back(std::move(to->message));
    if (const auto* close = std::get_if<CloseStream>(&action)) open.erase(close->stream);
    if (const auto* wake = std::get_if<WakeAt>(&action)) wake_ = wake->at;
    if (const auto* begin = std::get_if<BeginGeneration>(&action)) begun.push_back(begin->generation), members = begin->members;
    if (const auto* say = std::get_if<Say>(&action)) said.push_back(say->text);
    if (std::holds_alternative<HandOver>(action)) ++handed_over;
    if (const auto* ask = std::get_if<AskHost>(&action)) asked.push_back(*ask);
  }
  std::uint64_t next_stream_ = 1;
  std::optional<Instant> wake_;
  Instant last_sign_{};
};

}  // namespace elrun::test
