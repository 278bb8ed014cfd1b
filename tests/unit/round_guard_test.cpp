// Round: an agent was killed, as its guard says, or has ended, as its host says.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

namespace {

AgentEnded ended(const RoundBench& bench, const std::string& node, std::uint64_t incarnation = 1) {
  return {{NodeId{node}, incarnation}, bench.generation()};
}

}  // namespace

TEST_CASE("a node whose agent was killed is lost as soon as its stream has ended, without a grace", "[round]") {
  Pair bench;
  const Instant then = bench.now;
  SECTION("the guard is heard first") {
    bench.feed(FromGuard{ended(bench, "b")});
    CHECK(bench.count<Revoke>(bench.a) == 0);
    bench.break_stream(bench.b);
  }
  SECTION("the stream ends first") {
    bench.break_stream(bench.b);
    CHECK(bench.count<Revoke>(bench.a) == 0);
    bench.feed(FromGuard{ended(bench, "b")});
  }
  CHECK(bench.now == then);
  CHECK(bench.last<Revoke>(bench.a)->why.what == "node b is lost: its agent was killed, as its guard says");
  CHECK(bench.last<Revoke>(bench.a)->cause == EndCause::loss);
  bench.feed(FromGuard{ended(bench, "b")});  // a second time it changes nothing
  CHECK(bench.count<Revoke>(bench.a) == 1);
}

TEST_CASE("what an agent said before it was killed counts, also where its guard is read first", "[round]") {
  Pair bench;
  bench.feed(FromGuard{ended(bench, "b")});
  bench.say(bench.b, JobFinished{bench.generation()});
  bench.break_stream(bench.b);
  REQUIRE(bench.round.verdict());
  CHECK(bench.round.verdict()->exit_code == 0);
}

TEST_CASE("the end of a killed agent's stream may be lost on the way: it is waited for as long as a broken one", "[round]") {
  Pair bench;
  bench.feed(FromGuard{ended(bench, "b")});
  bench.pass(249ms);
  CHECK(bench.count<Revoke>(bench.a) == 0);
  bench.pass(1ms);
  CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("as its guard says"));
  CHECK_FALSE(bench.open.contains(bench.b));
}

TEST_CASE("a Join that a killed agent sent again is the end of its stream, and its node is lost once", "[round]") {
  Pair bench;
  bench.feed(FromGuard{ended(bench, "b")});
  bench.say(bench.b, bench.a_join("b"));
  CHECK_FALSE(bench.open.contains(bench.b));
  CHECK(bench.count<Revoke>(bench.a) == 1);
  CHECK(bench.last<Revoke>(bench.a)->why.what == "node b is lost: its agent was killed, as its guard says");
  bench.pass(10s);
  CHECK(bench.count<Revoke>(bench.a) == 1);
}

TEST_CASE("a guard is believed of its own agent alone", "[round]") {
  Pair bench;
  SECTION("not by who does not know the agent's number") { bench.feed(FromGuard{ended(bench, "b", 2)}); }
  SECTION("not of a node that is not here") { bench.feed(FromGuard{ended(bench, "c")}); }
  SECTION("not where the agent was in a later generation, with another coordinator") {
    AgentEnded later = ended(bench, "b");
    ++later.last.number;
    bench.feed(FromGuard{later});
  }
  bench.pass(10s);
  CHECK(bench.round.running());
  CHECK(bench.count<Revoke>(bench.a) == 0);
}

TEST_CASE("a guard that is late says nothing of the agent that its node has by then", "[round]") {
  Pair bench;
  const AgentEnded first = ended(bench, "b");
  bench.break_stream(bench.b);
  const auto b = bench.join("b", 2);
  bench.acknowledge(bench.a, "a");
  REQUIRE(bench.world(b) == "a b");
  bench.feed(FromGuard{first});
  bench.pass(10s);
  CHECK(bench.round.running() == bench.generation());
  CHECK(bench.open.contains(b));
}

TEST_CASE("who waits for the name of an agent that was killed has it at once", "[round]") {
  Pair bench;
  const auto b = bench.join("b", 2);
  CHECK_THAT(bench.last<Waiting>(b)->why, Contains("This one is admitted when that one is silent or gone"));
  bench.feed(FromGuard{ended(bench, "b")});
  bench.break_stream(bench.b);
  bench.acknowledge(bench.a, "a");
  CHECK(bench.world(b) == "a b");
}

TEST_CASE("nobody says of the agent that coordinates that it has ended", "[round]") {
  RoundBench bench{{.nodes_min = 1, .nodes_max = 1}};
  const auto a = bench.join_in_process("a");
  REQUIRE(bench.world(a) == "a");
  bench.feed(FromGuard{ended(bench, "a")});
  bench.pass(10s);
  CHECK(bench.round.running());
}

TEST_CASE("a Join that a killed agent sent, and that is read late, is no node", "[round]") {
  Pair bench;
  bench.break_stream(bench.b);
  bench.feed(FromGuard{ended(bench, "b")});
  const auto late = bench.join(bench.a_join("b"));
  CHECK_FALSE(bench.open.contains(late));
  CHECK(bench.count<Refused>(late) == 0);
  bench.acknowledge(bench.a, "a");
  CHECK(bench.begun.size() == 1);  // the one that is left is too few
}

TEST_CASE("claims are settled once each, although one of them is a killed agent's", "[round]") {
  RoundBench bench{{.nodes_min = 3, .nodes_max = 3}};
  const auto a = bench.join("a"), b = bench.join("b"), c = bench.join("c");
  REQUIRE(bench.world(c) == "a b c");
  const auto other_c = bench.join("c", 2);
  bench.pass(1s);
  const auto claim = bench.join("b", 2);
  bench.break_stream(b);
  const auto newer = bench.join("b", 2);  // the node had no stream, so this agent is node b now; its first stream is half open
  REQUIRE(bench.round.joined(newer));
  const auto waits = bench.join("b", 3);
  bench.pass(3990ms);
  bench.feed(FromGuard{{{NodeId{"b"}, 2}, bench.generation()}});
  bench.now += 10ms;
  bench.say(c, NodeAlive{});  // it lives, so its claimant is due; the coordinator looks at that with the next event
  bench.break_stream(newer);
  CHECK_FALSE(bench.open.contains(claim));
  CHECK(bench.round.joined(waits));  // the agent that comes next has the name, at once
  CHECK(bench.count<Refused>(other_c) == 1);
  CHECK(bench.count<Revoke>(a) == 1);
}

TEST_CASE("the only node is lost at once when its agent was killed, although all streams are gone", "[round]") {
  RoundBench bench{{.nodes_min = 1, .nodes_max = 2, .last_call = 0s}};
  const auto a = bench.join("a");
  REQUIRE(bench.world(a) == "a");
  bench.feed(FromGuard{ended(bench, "a")});
  bench.break_stream(a);
  CHECK_FALSE(bench.round.running());
  const auto b = bench.join("b");
  CHECK(bench.world(b) == "b");
}

TEST_CASE("an agent that was killed after the verdict is not waited for", "[round]") {
  Pair bench;
  bench.say(bench.a, JobFinished{bench.generation()});
  bench.say(bench.a, VerdictReceived{});
  REQUIRE(bench.round.verdict());
  CHECK_FALSE(bench.round.may_end(bench.now));
  bench.feed(FromGuard{ended(bench, "b")});
  bench.break_stream(bench.b);
  CHECK(bench.round.may_end(bench.now));
}

namespace {

constexpr const char* word_of_host = "node b is lost: its agent has ended: its host refuses connections to the agent's port";

/// A world of "a" and "b", of which b has a port at this address.
struct PairWithPort : RoundBench {
  StreamNumber a, b;
  explicit PairWithPort(const std::string& address = "10.0.0.7") : RoundBench{two}, a{join("a")}, b{join(b_join(address))} {
    pass(options.last_call);
    REQUIRE(world(a) == "a b");
    REQUIRE(world(b) == "a b");
  }
  [[nodiscard]] Join b_join(const std::string& address) const {
    Join join = a_join("b");
    join.liveness = LivenessPort{address, 41000};
    return join;
  }
};

}  // namespace

TEST_CASE("when a stream breaks the host is asked, and the node is lost at once where it says that its process has ended", "[round]") {
  PairWithPort bench;
  bench.break_stream(bench.b);
  REQUIRE(bench.asked.size() == 1);
  CHECK(bench.asked.front().who == Incarnation{NodeId{"b"}, 1});
  CHECK(bench.asked.front().port == LivenessPort{"10.0.0.7", 41000});
  CHECK(bench.count<Revoke>(bench.a) == 0);
  const Instant then = bench.now;
  bench.feed(FromHost{bench.asked.front().who});
  CHECK(bench.now == then);
  REQUIRE(bench.count<Revoke>(bench.a) == 1);
  CHECK(bench.last<Revoke>(bench.a)->why.what == word_of_host);
  CHECK(bench.last<Revoke>(bench.a)->cause == EndCause::loss);
  bench.feed(FromHost{bench.asked.front().who});  // a second time it changes nothing
  CHECK(bench.count<Revoke>(bench.a) == 1);
}

TEST_CASE("a host that does not answer leaves the node its grace", "[round]") {
  PairWithPort bench;
  bench.break_stream(bench.b);
  bench.pass(249ms);
  CHECK(bench.count<Revoke>(bench.a) == 0);
  bench.pass(1ms);
  CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("did not return within 0.25 s"));
}

TEST_CASE("a host is asked only where the stream came from the address at which the process listens", "[round]") {
  SECTION("a translator of addresses is between them") {
    PairWithPort bench{"192.168.1.2"};
    bench.break_stream(bench.b);
    CHECK(bench.asked.empty());
  }
  SECTION("the agent has no such port") {
    Pair bench;
    bench.break_stream(bench.b);
    CHECK(bench.asked.empty());
  }
  SECTION("the coordinator closed the stream itself") {
    PairWithPort bench;
    bench.silent.insert(bench.b);
    bench.pass(10s);
    REQUIRE_FALSE(bench.open.contains(bench.b));
    CHECK(bench.asked.empty());
  }
  SECTION("the job is over") {
    PairWithPort bench;
    bench.say(bench.a, JobFinished{bench.generation()});
    REQUIRE(bench.round.verdict());
    bench.break_stream(bench.b);
    CHECK(bench.asked.empty());
  }
}

TEST_CASE("a process that lives although its host seemed to say otherwise comes back as a newcomer", "[round]") {
  PairWithPort bench;
  const World held = *bench.last<World>(bench.b);
  bench.break_stream(bench.b);
  bench.feed(FromHost{bench.asked.front().who});
  REQUIRE(bench.count<Revoke>(bench.a) == 1);
  const auto again = bench.resume("b", held);  // its workers still run, and are told to end
  REQUIRE(bench.open.contains(again));
  bench.acknowledge(bench.a, "a");
  bench.acknowledge(again, "b");
  CHECK(bench.world(again) == "a b");
}

TEST_CASE("what a host says does not count for a process that came back, nor for the next one of its node", "[round]") {
  PairWithPort bench;
  const World held = *bench.last<World>(bench.b);
  bench.break_stream(bench.b);
  REQUIRE(bench.asked.size() == 1);
  SECTION("it came back on another stream") {
    const auto again = bench.resume("b", held);
    bench.feed(FromHost{bench.asked.front().who});
    bench.pass(10s);
    CHECK(bench.open.contains(again));
    CHECK(bench.count<Revoke>(bench.a) == 0);
  }
  SECTION("its node has another process by then") {
    const auto next = bench.join("b", 2);
    bench.acknowledge(bench.a, "a");
    REQUIRE(bench.world(next) == "a b");
    const auto then = bench.generation();
    bench.feed(FromHost{bench.asked.front().who});
    bench.break_stream(next);
    bench.feed(FromHost{bench.asked.front().who});
    bench.pass(100ms);
    CHECK(bench.round.running() == then);
  }
  SECTION("it is not here") {
    bench.feed(FromHost{{NodeId{"c"}, 1}});
    CHECK(bench.count<Revoke>(bench.a) == 0);
  }
}

}  // namespace elrun::test
