// Round: between the end of a generation and the beginning of the next one.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

TEST_CASE("the next generation begins when every living member has acknowledged the end of the last", "[round]") {
  Pair bench{one_to_three};
  const auto c = bench.join("c");
  bench.say(bench.b, failure(bench.generation(), true));
  REQUIRE(bench.count<Revoke>(bench.a) == 1);
  REQUIRE(bench.count<Revoke>(bench.b) == 1);
  SECTION("not before, and never after last call") {
    bench.acknowledge(bench.a, "a");
    bench.pass(30s);
    CHECK(bench.begun.size() == 1);
    CHECK(bench.last<Waiting>(c)->why == "waiting for b to end the workers of generation 1@00000000; they count as lost in 37 s");
    bench.acknowledge(bench.b, "b");
    CHECK(bench.world(c) == "a b c");
  }
  SECTION("an acknowledgement without a new Join is waited for, too") {
    bench.acknowledge(bench.a, "a");
    bench.say(bench.b, Acknowledge{bench.generation()});
    bench.pass(30s);
    CHECK(bench.begun.size() == 1);
  }
  SECTION("or was lost") {
    bench.acknowledge(bench.a, "a");
    bench.break_stream(bench.b);
    bench.pass(250ms);
    CHECK(bench.world(c) == "a c");
  }
  SECTION("or did not answer for too long, which makes it lost") {
    bench.acknowledge(bench.a, "a");
    bench.pass(37s);
    CHECK_FALSE(bench.open.contains(bench.b));
    CHECK(bench.world(c) == "a c");
  }
}

TEST_CASE("a node whose workers have longer to end than the coordinator's is waited for as long as they have", "[round]") {
  RoundBench bench{{.nodes_min = 1, .nodes_max = 3}};
  const auto a = bench.join("a");
  Join patient = bench.a_join("b");
  patient.stop_grace = 300s;
  const auto b = bench.join(patient), c = bench.join("c");
  REQUIRE(bench.world(a) == "a b c");
  bench.say(a, WorkerFailed{bench.generation(), 1, 3, "exit code 3", true, Duration{0}, {}});
  bench.acknowledge(a, "a");
  bench.pass(36s);
  CHECK_THAT(bench.last<Waiting>(a)->why, Contains("waiting for b, c to end the workers"));
  CHECK_THAT(bench.last<Waiting>(a)->why, Contains("they count as lost in 307 s"));
  CHECK(bench.open.contains(c));
  bench.pass(1s);
  CHECK_FALSE(bench.open.contains(c));  // its grace is the coordinator's
  CHECK(bench.open.contains(b));
  SECTION("it returns") {
    bench.pass(200s);
    CHECK(bench.begun.size() == 1);
    bench.acknowledge(b, "b");
    CHECK(bench.world(a) == "a b");
  }
  SECTION("it does not") {
    bench.pass(269s);
    CHECK(bench.open.contains(b));
    bench.pass(1s);
    CHECK_FALSE(bench.open.contains(b));
    CHECK(bench.world(a) == "a");
  }
}

TEST_CASE("a world below the minimum fails at the join deadline, and names who is gone", "[round]") {
  Pair bench;
  bench.break_stream(bench.b);
  bench.pass(1s);
  bench.acknowledge(bench.a, "a");
  SECTION("somebody comes") {
    bench.pass(500s);
    const auto c = bench.join("c");
    CHECK(bench.world(c) == "a c");
  }
  SECTION("nobody comes") {
    bench.pass(600s);
    REQUIRE(bench.last<Verdict>(bench.a));
    CHECK(bench.last<Verdict>(bench.a)->exit_code == 172);
    CHECK(
        bench.last<Verdict>(bench.a)->report ==
        "1 of at least 2 nodes were there within 600 s; missing: at least 1; gone: b (its stream broke and it did not return within 0.25 s)");
  }
}

TEST_CASE("a node that leaves is no failure", "[round]") {
  Pair bench{one_to_three};
  bench.say(bench.b, Leave{"signal 15 (SIGTERM)"});
  CHECK(bench.last<Revoke>(bench.a)->why.what == "node b leaves: signal 15 (SIGTERM)");
  bench.pass(25s);  // it ends its workers meanwhile, and nobody waits for it
  CHECK(bench.open.contains(bench.b));
  bench.acknowledge(bench.a, "a");
  CHECK(bench.world(bench.a) == "a");
  CHECK(bench.last<World>(bench.a)->restarts.generations == 0);
  SECTION("the last one to leave leaves no verdict: others may come") {
    bench.say(bench.a, Leave{"signal 15 (SIGTERM)"});
    CHECK_FALSE(bench.round.verdict());
    bench.pass(1h);
    const auto c = bench.join("c");
    bench.pass(30s);
    CHECK(bench.world(c) == "c");
  }
}

TEST_CASE("a waiting node is told which nodes were refused, and why", "[round]") {
  RoundBench bench{two};
  const auto a = bench.join("a");
  Join other = bench.a_join("c");
  other.options.nodes_max = 3;
  bench.join(other);
  bench.pass(status_debounce);
  CHECK(bench.last<Waiting>(a)->why ==
        "1 of 2 nodes; missing: at least 1; refused: c (--nnodes MAX: this node has 3, the job has 2); the job is given up in 600 s");
  SECTION("until it comes as it should") {
    bench.join("c");
    CHECK(bench.world(a) == "a c");
  }
  SECTION("a bounded number of them, by a bounded text") {
    for (int i = 0; i < 100; ++i) {
      other.who.node = NodeId{fmt::format("c{}", i)};
      other.version = std::string(1000, 'x');
      bench.join(other);
    }
    bench.pass(10min - status_debounce);
    REQUIRE(bench.round.verdict());
    CHECK(bench.round.verdict()->report.size() < 4000);
    CHECK_THAT(bench.round.verdict()->report, Contains(fmt::format(" and {} more", refused_max - 8)));
  }
}

TEST_CASE("two nodes with one node rank are reported once, where the number of nodes is fixed", "[round]") {
  const std::uint32_t least = GENERATE(1u, 2u);
  RoundBench bench{{.nodes_min = least, .nodes_max = 2, .max_restarts = 1}};
  const auto ranked = [&](const std::string& node, std::int32_t rank) {
    Join join = bench.a_join(node);
    join.hint = rank;
    return bench.join(join);
  };
  const auto a = ranked("a", 1), b = ranked("b", 1);
  CHECK(bench.world(a) == "a b");
  bench.say(b, failure(bench.generation()));
  bench.acknowledge(a, "a"), bench.acknowledge(b, "b");
  REQUIRE(bench.begun.size() == 2);
  const auto told = std::count_if(bench.said.begin(), bench.said.end(), [](const std::string& line) {
    return line.find("nodes b and a both have the node rank 1 ") != std::string::npos;
  });
  CHECK(told == (least == 2 ? 1 : 0));
}

}  // namespace elrun::test
