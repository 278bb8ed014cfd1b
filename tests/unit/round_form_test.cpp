// Round: when a round closes, what nodes are told meanwhile, and how ranks are given.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

TEST_CASE("a round closes at once with the maximum", "[round]") {
  RoundBench bench{one_to_three};
  const auto a = bench.join("a"), b = bench.join("b");
  CHECK(bench.world(a).empty());
  const auto c = bench.join("c");
  for (const StreamNumber stream : {a, b, c}) CHECK(bench.world(stream) == "a b c");
  const auto world = bench.last<World>(c);
  CHECK(world->generation == Generation{1, {{0x1111, 0x2222}}});
  CHECK(world->seat.group_rank == 2);
  CHECK(bench.members[2] == Member{NodeId{"c"}, "c.local", 2, 4, 4000, {4, 6}});
  CHECK(world->key == bench.last<World>(a)->key);
}

TEST_CASE("workers of one role are numbered among themselves, in the order of ranks", "[round]") {
  RoundBench bench{{.nodes_min = 3, .nodes_max = 3}};
  const auto of_role = [&](const std::string& node, const std::string& role) {
    Join join = bench.a_join(node);
    join.role = role;
    return bench.join(join);
  };
  const auto a = of_role("a", "reader"), b = of_role("b", "trainer"), c = of_role("c", "reader");
  CHECK(bench.last<World>(a)->role == RolePlace{0, 4});
  CHECK(bench.last<World>(b)->role == RolePlace{0, 2});
  CHECK(bench.last<World>(c)->role == RolePlace{2, 4});
}

TEST_CASE("a round with the minimum closes when last call is over", "[round]") {
  RoundBench bench{{.nodes_min = 2, .nodes_max = 4, .last_call = 30s}};
  const auto a = bench.join("a");
  bench.pass(100s);
  const auto b = bench.join("b");
  SECTION("not before") {
    bench.pass(30s - 1ms);
    CHECK(bench.world(a).empty());
  }
  SECTION("but then") {
    bench.pass(30s);
    CHECK(bench.world(a) == "a b");
  }
  SECTION("last call begins anew when the minimum was lost") {
    bench.pass(20s);
    bench.break_stream(b);
    bench.pass(1s);
    bench.join("c");
    bench.pass(29s);
    CHECK(bench.world(a).empty());
    bench.pass(1s);
    CHECK(bench.world(a) == "a c");
  }
}

TEST_CASE("nodes beyond the maximum are spares, and take the places of lost nodes", "[round]") {
  Pair bench;
  const auto c = bench.join("c");
  bench.pass(status_debounce);
  REQUIRE(bench.count<Waiting>(c) == 1);
  CHECK_THAT(bench.last<Waiting>(c)->why, Contains("this node is a spare"));
  bench.pass(10h);
  CHECK(bench.begun.size() == 1);
  CHECK(bench.count<Waiting>(c) == 1);
  bench.break_stream(bench.b);
  bench.pass(1s);
  CHECK(bench.last<Revoke>(bench.a)->why.what == "node b is lost: its stream broke and it did not return within 0.25 s");
  CHECK(bench.count<Revoke>(c) == 0);
  bench.acknowledge(bench.a, "a");
  CHECK(bench.world(bench.a) == "a c");
  CHECK(bench.world(c) == "a c");
}

TEST_CASE("a round without the minimum fails at the join deadline, and names who is missing", "[round]") {
  RoundBench bench{{.nodes_min = 3, .nodes_max = 3}};
  const auto a = bench.join("a"), b = bench.join("b");
  bench.pass(599s);
  REQUIRE(bench.count<Waiting>(b) == 1);  // said when it changed, not on every tick
  CHECK(bench.last<Waiting>(b)->why == "2 of 3 nodes; missing: at least 1; the job is given up in 600 s");
  CHECK_FALSE(bench.round.verdict());
  bench.pass(1s);
  CHECK(bench.last<Verdict>(a)->exit_code == 170);
  CHECK(bench.last<Verdict>(a)->report == "2 of at least 3 nodes were there within 600 s; missing: at least 1");
}

TEST_CASE("a waiting node is told what the round waits for, and until when", "[round]") {
  RoundBench bench{{.nodes_min = 2, .nodes_max = 3, .last_call = 12s}};
  const auto a = bench.join("a");
  CHECK(bench.count<Waiting>(a) == 0);  // a moment later it may be another reason
  bench.pass(status_debounce);
  REQUIRE(bench.count<Waiting>(a) == 1);
  CHECK(bench.last<Waiting>(a)->why == "1 of 2 nodes; missing: at least 1; the job is given up in 600 s");
  bench.pass(1s);
  bench.join("b");
  bench.pass(status_debounce);
  CHECK(bench.last<Waiting>(a)->why == "2 of 3 nodes; room for 1 more; last call ends in 12 s");
}

TEST_CASE("the more nodes wait, the rarer are status messages", "[round]") {
  RoundBench bench{{.nodes_min = 1001, .nodes_max = 1001}};
  std::vector<StreamNumber> streams;
  for (int i = 0; i < 1000; ++i) {
    streams.push_back(bench.join(fmt::format("n{}", i)));
    bench.pass(1ms);
  }
  std::size_t told = 0;
  for (const StreamNumber stream : streams) told += bench.count<Waiting>(stream);
  CHECK(told == 0);  // most of those that come are told of a world instead
  bench.pass(5s);
  CHECK_THAT(bench.last<Waiting>(streams.front())->why, Contains("1000 of 1001 nodes"));
}

TEST_CASE("nodes that keep joining put status messages off, but not for ever", "[round]") {
  RoundBench bench{{.nodes_min = 1001, .nodes_max = 1001}};
  const StreamNumber first = bench.join("first");
  for (int i = 0; i < 220; ++i) {
    bench.pass(50ms);
    bench.join(fmt::format("n{}", i));
    if (i == 190) CHECK(bench.count<Waiting>(first) == 0);
  }
  CHECK(bench.count<Waiting>(first) > 0);
}

TEST_CASE("the deadlines of a round say who is waited for, until when, and what then", "[round]") {
  RoundBench bench{two};
  CHECK(bench.round.deadlines(bench.now).empty());
  bench.join("a");
  const auto row = [&](std::string_view who) -> std::optional<RoundDeadline> {
    for (const RoundDeadline& each : bench.round.deadlines(bench.now))
      if (each.who == who) return each;
    return {};
  };
  REQUIRE(row("the minimum of nodes"));
  CHECK(row("the minimum of nodes")->at == bench.now + 600s);
  CHECK(row("the minimum of nodes")->then == "the job fails");
  CHECK_FALSE(row("members that end their workers"));
  const auto b = bench.join("b");
  CHECK_FALSE(row("the minimum of nodes"));
  bench.say(b, Leave{"signal 15 (SIGTERM)"});
  REQUIRE(row("members that end their workers"));
  CHECK(row("members that end their workers")->then == "they are lost");
}

TEST_CASE("status messages name the missing node ranks where every node gives one", "[round]") {
  RoundBench bench{{.nodes_min = 4, .nodes_max = 4}};
  StreamNumber stream;
  for (const std::int32_t hint : {0, 2}) {
    Join join = bench.a_join(fmt::format("node{}", hint));
    join.hint = hint;
    stream = bench.join(join);
  }
  bench.pass(600s);
  CHECK(bench.last<Verdict>(stream)->report == "2 of at least 4 nodes were there within 600 s; missing: at least 2 (node rank 1, 3)");
}

TEST_CASE("a node without workers counts as a node, has no place in a world, and gets the verdict", "[round]") {
  RoundBench bench{{.nodes_min = 3, .nodes_max = 3}};
  Join observer = bench.a_join("watch");
  observer.workers = 0;
  const auto watch = bench.join(observer);
  const auto a = bench.join("a");
  bench.pass(options_last_call);
  CHECK(bench.begun.empty());
  const auto b = bench.join("b");
  CHECK(bench.world(a) == "a b");
  bench.pass(1min);
  CHECK(bench.begun.size() == 1);  // it is no newcomer to grow by
  CHECK_THAT(bench.last<Waiting>(watch)->why, Contains("it only coordinates"));
  CHECK(bench.count<World>(watch) == 0);
  bench.break_stream(b);
  bench.pass(1s);
  CHECK(bench.last<Revoke>(a));
  CHECK(bench.count<Revoke>(watch) == 0);
  bench.acknowledge(a, "a");
  bench.pass(1min);
  CHECK(bench.begun.size() == 1);  // it replaces nobody
  bench.say(a, JobFinished{bench.generation()});
  CHECK(bench.last<Verdict>(watch)->exit_code == 0);
}

TEST_CASE("nodes that share labels get neighbouring ranks", "[round]") {
  RoundBench bench{{.nodes_min = 5, .nodes_max = 6, .last_call = 0s}};
  std::vector<StreamNumber> streams;
  const auto come = [&](const char* node, const char* topology) {
    Join join = bench.a_join(node);
    join.topology = topology;
    streams.push_back(bench.join(join));
  };
  come("a", "east/1"), come("b", "west/1"), come("c", "east/2"), come("d", "west/1"), come("e", "east/1");
  bench.pass(1s);
  REQUIRE(bench.world(streams[0]) == "a e c b d");
  come("f", "east/2");
  bench.pass(5s);
  for (std::size_t i = 0; i < 5; ++i) {
    Join again = bench.a_join(std::string(1, static_cast<char>('a' + i)));
    again.topology = std::vector{"east/1", "west/1", "east/2", "west/1", "east/1"}[i];
    again.last = bench.generation();
    bench.say(streams[i], again);
  }
  CHECK(bench.world(streams[0]) == "a e c f b d");
}

TEST_CASE("of two newcomers with one node rank the later one is taken first", "[round]") {
  RoundBench bench{{.nodes_min = 2, .nodes_max = 2}};
  const auto come = [&](const char* node, std::int32_t hint) {
    Join join = bench.a_join(node);
    join.hint = hint;
    return bench.join(join);
  };
  const auto a = come("a", 0);
  const auto b = come("b", 1);
  REQUIRE(bench.world(a) == "a b");
  const auto older = come("a-1", 1);
  bench.pass(1ms);
  const auto newer = come("b-1", 1);
  bench.break_stream(b);
  bench.pass(1s);
  bench.acknowledge(a, "a");
  CHECK(bench.world(newer) == "a b-1");
  CHECK(bench.count<World>(older) == 0);
}

TEST_CASE("a node that does not fit is refused, with all contradictions and both values", "[round]") {
  RoundBench bench{two};
  bench.join("a");
  Join join = bench.a_join("b");
  const auto refusal = [&] {
    const auto stream = bench.join(join);
    CHECK_FALSE(bench.open.contains(stream));
    const auto refused = bench.last<Refused>(stream);
    REQUIRE(refused);
    CHECK(refused->failure.remedy == Remedy::fix_config);
    return refused->failure.what;
  };
  SECTION("all at once") {
    join.run = RunId{"other"};
    join.version = "2.0.0";
    join.options.nodes_max = 3;
    join.options.max_restarts = 7;
    CHECK(refusal() ==
          "node b does not fit: run id (--rdzv_id): this node has other, the job has run; "
          "version: this node runs elrun 2.0.0, the coordinator 1.2.0; the major versions must agree; "
          "--nnodes MAX: this node has 3, the job has 2; --max_restarts (-1: not given): this node has 7, the job has -1");
  }
  SECTION("a version that is none") {
    join.version = "one";
    CHECK_THAT(refusal(), Contains("elrun one"));
  }
  SECTION("options that make no sense") {
    join.options.nodes_min = 3;
    CHECK_THAT(refusal(), Contains("--nnodes 3:2"));
  }
  CHECK(bench.begun.empty());
  bench.join("b");
  CHECK(bench.begun.size() == 1);
}

TEST_CASE("before the first generation, the first node that is there sets options and run id", "[round]") {
  RoundSetup setup = bench_setup();
  setup.run = RunId{};
  RoundBench bench{two, setup};
  Join wrong = bench.a_join("a");
  wrong.options.nodes_max = 9;
  wrong.run = RunId{"typo"};
  const auto a = bench.join(wrong);
  bench.say(a, Leave{"signal 2 (SIGINT)"});
  const auto b = bench.join("b");
  bench.join("c");
  CHECK(bench.world(b) == "b c");
}

TEST_CASE("a coordinator that was told its run id and number of nodes does not take them from a node", "[round]") {
  RoundSetup setup = bench_setup();
  setup.run = RunId{"run"};
  setup.nodes_min = setup.nodes_max = 2;
  RoundBench bench{two, setup};
  Join outsider = bench.a_join("outsider");
  outsider.run = RunId{"other"};
  outsider.options = {.nodes_min = 1, .nodes_max = 1};
  const auto first = bench.join(outsider);
  REQUIRE(bench.last<Refused>(first));
  CHECK_THAT(bench.last<Refused>(first)->failure.what,
             Contains("this node has other, the job has run") && Contains("--nnodes MIN: this node has 1, the job has 2"));
  CHECK(bench.begun.empty());
  const auto a = bench.join("a");
  bench.join("b");
  CHECK(bench.world(a) == "a b");
}

TEST_CASE("a generation's number is above every number that any node has seen", "[round]") {
  RoundSetup setup = bench_setup();
  setup.generation_floor = 5;
  RoundBench bench{two, setup};
  Join a = bench.a_join("a");
  a.last = {41, {{9, 9}}};
  bench.join(a);
  bench.join("b");
  CHECK(bench.generation().number == 42);
}

TEST_CASE("names are compared in natural order: node2 before node10", "[round]") {
  CHECK(natural_less("node2", "node10"));
  CHECK_FALSE(natural_less("node10", "node2"));
  CHECK(natural_less("a", "b"));
  CHECK(natural_less("node", "node1"));
  CHECK(natural_less("n1-2", "n1-10"));
  CHECK(natural_less("n01", "n1") != natural_less("n1", "n01"));
  CHECK_FALSE(natural_less("x", "x"));
}

TEST_CASE("the first world is ordered by node rank, then by name; in later ones survivors keep their order and come first", "[round]") {
  RoundBench bench{{.nodes_min = 1, .nodes_max = 4}};
  const auto with_hint = [&](const std::string& node, std::int32_t hint) {
    Join join = bench.a_join(node);
    join.hint = hint;
    return bench.join(join);
  };
  const auto ten = with_hint("node10", -1), two_ = with_hint("node2", -1), z = with_hint("z", 0), y = with_hint("y", 1);
  CHECK(bench.world(z) == "z y node2 node10");
  const auto zero = with_hint("zero", 0);  // a spare that comes after all survivors, whatever its hint
  bench.break_stream(y);
  bench.pass(1s);
  bench.acknowledge(ten, "node10");
  bench.acknowledge(two_, "node2");
  bench.acknowledge(z, "z");
  CHECK(bench.world(zero) == "z node2 node10 zero");
}

TEST_CASE("a world of fixed size whose nodes all give node ranks is always ordered by them", "[round]") {
  RoundBench bench{two};
  const auto with_hint = [&](const std::string& node, std::int32_t hint, std::uint64_t incarnation = 1) {
    Join join = bench.a_join(node, incarnation);
    join.hint = hint;
    return join;
  };
  const auto a = bench.join(with_hint("a", 1));
  const auto b = bench.join(with_hint("b", 0));
  CHECK(bench.world(a) == "b a");
  bench.break_stream(b);
  bench.pass(1s);
  Join again = with_hint("a", 1);
  again.last = bench.generation();
  bench.say(a, again);
  bench.join(with_hint("b", 0, 2));
  CHECK(bench.world(a) == "b a");
}

}  // namespace elrun::test
