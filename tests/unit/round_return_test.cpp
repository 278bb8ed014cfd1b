// A coordinator is lost after it ended a generation and before it began the next: who comes to the next one has no workers.
#include "rendezvous/round/round.hpp"
#include "tests/support/round_bench.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

constexpr RoundOptions one_to_three{.nodes_min = 1, .nodes_max = 3, .last_call = 30s};

RoundSetup fresh_setup() {
  RoundSetup setup = bench_setup();
  setup.lineage = {{0x5555, 0x6666}};
  return setup;
}

/// "a", "b" and "c" of a generation that "b" coordinated in its own process, come to another coordinator one by one.
struct Return : RoundBench {
  World a, b, c;
  Return() : RoundBench{one_to_three, fresh_setup()} {
    RoundBench old{one_to_three};
    const auto first = old.join("a"), second = old.join_in_process("b"), third = old.join("c");
    a = *old.last<World>(first), b = *old.last<World>(second), c = *old.last<World>(third);
  }
  Join ended(const char* node, const World& world) const {
    Join join = a_join(node);
    join.last = world.generation;
    join.seat = world.seat;
    join.coordinated_by = world.coordinated_by;
    return join;
  }
  StreamNumber come(const char* node, const World& world) { return join(ended(node, world)); }
};

}  // namespace

TEST_CASE("whoever is left of a generation that was over begins the next one at once", "[round]") {
  Return bench;
  const auto a = bench.come("a", bench.a);
  CHECK(bench.begun.empty());
  SECTION("the one that coordinated it is not waited for") {
    const auto c = bench.come("c", bench.c);
    CHECK(bench.world(a) == "a c");
    CHECK(bench.world(c) == "a c");
    CHECK(bench.generation().number > bench.a.generation.number);
  }
  SECTION("the other way round, it was another one's that is missing") {
    const auto b = bench.come("b", bench.b);
    bench.pass(2900ms);
    CHECK(bench.begun.empty());
    CHECK_THAT(bench.last<Waiting>(a)->why, Contains("of 3 nodes is over; 2 here so far; the others begin the next one in 3 s"));
    bench.pass(100ms);
    CHECK(bench.world(b) == "a b");
  }
  SECTION("all of them") {
    Join ending = bench.a_resuming_join("c", bench.c);
    ending.seat.reset();  // it has not ended its workers yet
    const auto c = bench.join(ending);
    const auto b = bench.come("b", bench.b);
    CHECK(bench.begun.empty());
    bench.say(c, bench.ended("c", bench.c));
    CHECK(bench.world(b) == "a b c");
  }
}

TEST_CASE("who is on the way back after a generation was over has as long as it tries again within", "[round]") {
  Return bench;
  const auto a = bench.come("a", bench.a);
  SECTION("and no longer: last call is for the first formation of a job") {
    bench.pass(2900ms);
    CHECK(bench.begun.empty());
    bench.pass(100ms);
    CHECK(bench.world(a) == "a");
  }
  SECTION("a spare is none of them") {
    const auto spare = bench.join("x");
    bench.pass(2900ms);
    CHECK(bench.begun.empty());
    bench.pass(100ms);
    CHECK(bench.world(spare) == "a x");
  }
  SECTION("nor is a node that comes with a seat of an earlier generation") {
    World earlier = bench.c;
    earlier.generation.number = 0;
    earlier.generation.lineage = {};
    bench.come("c", earlier);
    bench.pass(2900ms);
    CHECK(bench.begun.empty());
  }
  SECTION("one that is here and still ends its workers has as long as it needs") {
    Join ending = bench.a_join("c");
    ending.last = bench.c.generation;
    ending.resuming = true;
    const auto c = bench.join(ending);
    bench.pass(10s);
    CHECK(bench.begun.empty());
    bench.say(c, bench.ended("c", bench.c));
    CHECK(bench.world(a) == "a c");
  }
  SECTION("they do not agree on who coordinated") {
    World other = bench.c;
    SECTION("one was told of a node that is here") { other.coordinated_by = 0; }
    SECTION("one was told of nobody") { other.coordinated_by.reset(); }
    SECTION("out of bounds") { other.coordinated_by = 3; }
    bench.come("c", other);
    bench.pass(2900ms);
    CHECK(bench.begun.empty());
    bench.pass(100ms);
    CHECK(bench.world(a) == "a c");
  }
}

TEST_CASE("a last call that is shorter is not made longer by those who were there before", "[round]") {
  Return bench;
  bench.options.last_call = 1s;
  const auto a = bench.come("a", bench.a);
  bench.pass(1s);
  CHECK(bench.world(a) == "a");
}

TEST_CASE("an elected coordinator whose own node leaves begins no generation: it hands over once the others are ready", "[round]") {
  const bool elected = GENERATE(true, false);
  CAPTURE(elected);
  RoundSetup setup = bench_setup();
  setup.elected = elected;
  RoundBench bench{{.nodes_min = 2, .nodes_max = 3, .last_call = 30s}, setup};
  const auto a = bench.join("a"), own = bench.join_in_process("b"), c = bench.join("c");
  REQUIRE(bench.begun.size() == 1);
  const bool own_leaves = GENERATE(true, false);
  CAPTURE(own_leaves);
  bench.say(own_leaves ? own : a, Leave{"SIGTERM came"});
  const auto other = own_leaves ? a : own;
  const auto name = own_leaves ? "a" : "b";
  bench.acknowledge(other, name);
  CHECK(bench.handed_over == 0);  // "c" may still act for the generation that is over
  bench.acknowledge(c, "c");
  bench.pass(5s);
  CHECK(bench.handed_over == (elected && own_leaves ? 1 : 0));
  CHECK(bench.begun.size() == (elected && own_leaves ? 1 : 2));
}

TEST_CASE("an elected coordinator whose node leaves hands over only where another node may coordinate", "[round]") {
  RoundSetup setup = bench_setup();
  setup.elected = true;
  RoundBench bench{{.nodes_min = 1, .nodes_max = 3, .last_call = 0s}, setup};
  const auto own = bench.join_in_process("b"), a = bench.join("a");
  bench.acknowledge(own, "b");
  REQUIRE(bench.world(a) == "b a");
  const bool observer_may = GENERATE(true, false), may = GENERATE(true, false);
  CAPTURE(may, observer_may);
  Join observer = bench.a_join("o");
  observer.workers = 0;
  observer.may_coordinate = observer_may;
  bench.join(observer);
  bench.say(own, Leave{"SIGTERM came"});
  const Generation over = bench.generation();
  bench.say(a, Acknowledge{over});
  Join again = bench.a_join("a");
  again.last = over;
  again.may_coordinate = may;
  bench.say(a, again);
  bench.pass(5s);
  CHECK(bench.handed_over == (may || observer_may ? 1 : 0));
  CHECK(bench.begun.size() == (may || observer_may ? 2 : 3));
  const auto warned =
      std::count_if(bench.said.begin(), bench.said.end(), [](const std::string& line) { return line.find("is_host=0") != line.npos; });
  CHECK(warned == (may || observer_may ? 0 : 1));
}

TEST_CASE("members of a generation that was over come before spares, which were here first", "[round]") {
  RoundSetup setup = fresh_setup();
  setup.elected = setup.floor_may_run = true;
  setup.generation_floor = 1;
  RoundBench bench{one_to_three, setup};
  Return before;
  Join spare = bench.a_join("x");
  spare.heard = 1;
  bench.join(spare);
  spare.who.node = NodeId{"y"};
  const auto y = bench.join(spare);
  bench.pass(1s);
  const auto c = bench.join(before.ended("c", before.c));
  CHECK(bench.begun.empty());  // three are here, and a member is missing
  SECTION("the other one comes") {
    bench.pass(1s);
    const auto a = bench.join(before.ended("a", before.a));
    CHECK(bench.world(a) == "a c x");
    CHECK(bench.world(c) == "a c x");
    REQUIRE(bench.last<Waiting>(y));
  }
  SECTION("it does not: it is waited for as long as it tries again within") {
    bench.pass(2900ms);
    CHECK(bench.begun.empty());
    bench.pass(100ms);
    CHECK(bench.world(c) == "c x y");
  }
}

}  // namespace elrun::test
