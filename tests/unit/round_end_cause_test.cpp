// Why a generation ended, as the coordinator tells it to the nodes.
#include "tests/support/round_bench.hpp"

namespace elrun::test {
namespace {

/// A world of "a" and "b" that runs, with room for a third.
struct TwoNodes : RoundBench {
  StreamNumber a, b;
  explicit TwoNodes(RoundSetup setup = bench_setup())
      : RoundBench{{.nodes_min = 1, .nodes_max = 3, .last_call = 1s}, std::move(setup)}, a{join("a")}, b{join("b")} {
    pass(1s);
    REQUIRE(world(a) == "a b");
  }
  /// What `a` was told; nothing when its generation is not over.
  [[nodiscard]] std::optional<EndCause> cause() const { return last<Revoke>(a) ? last<Revoke>(a)->cause : std::nullopt; }
};

}  // namespace

TEST_CASE("the coordinator tells why a generation ended", "[round][end_cause]") {
  TwoNodes bench;
  SECTION("growth: a newcomer is taken in") {
    bench.join("c");
    bench.pass(2s);
    CHECK(bench.cause() == EndCause::growth);
  }
  SECTION("growth: a member has more workers") {
    bench.say(bench.b, MoreWorkers{bench.generation()});
    bench.pass(2s);
    CHECK(bench.cause() == EndCause::growth);
  }
  SECTION("failure: a worker ended by itself") {
    bench.say(bench.b, WorkerFailed{bench.generation(), 0, 3, "exit code 3", true, Duration{0}, {}});
    CHECK(bench.cause() == EndCause::failure);
  }
  SECTION("loss: a node is silent") {
    bench.silent.insert(bench.b);
    bench.pass(10s);
    CHECK(bench.cause() == EndCause::loss);
  }
  SECTION("loss: a node gave the generation up") {
    Join again = bench.a_join("b");
    again.last = bench.generation();
    bench.say(bench.b, again);
    CHECK(bench.cause() == EndCause::loss);
  }
  SECTION("leave: a node leaves in order") {
    bench.say(bench.b, Leave{"signal 15 (SIGTERM)"});
    CHECK(bench.cause() == EndCause::leave);
  }
  SECTION("unreachable: two members cannot reach each other") {
    bench.say(bench.b, PeerUnreachable{bench.generation(), 2, 0, true, "nothing was answered in 15 s"});
    bench.pass(5s);
    CHECK(bench.cause() == EndCause::unreachable);
  }
  SECTION("hang: workers of a node do not join the world") {
    bench.say(bench.a, WorkersAreJob{bench.generation()});
    bench.say(bench.a, Progress{bench.generation(), 5});
    bench.say(bench.b, WorkersStarting{.generation = bench.generation(), .rank = 2, .count = 2, .ago = 10s});
    bench.pass(10min);
    CHECK(bench.cause() == EndCause::hang);
  }
}

TEST_CASE("a node that comes with a generation which is not the newest is told that it is stale", "[round][end_cause]") {
  TwoNodes old;
  const World held = *old.last<World>(old.a);
  RoundSetup setup = bench_setup();
  setup.lineage = {{0x3333, 0x4444}};
  TwoNodes bench{setup};
  const StreamNumber late = bench.resume("c", held);
  REQUIRE(bench.last<Revoke>(late));
  CHECK(bench.last<Revoke>(late)->generation == held.generation);
  CHECK(bench.last<Revoke>(late)->cause == EndCause::stale);
  CHECK(bench.last<Revoke>(late)->why.code == Code::generation_over);  // for agents of earlier versions
}

}  // namespace elrun::test
