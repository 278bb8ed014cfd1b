// Round: nodes whose workers keep failing are excluded.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

namespace {

/// Nodes "a", "b" and "c" train; "c" comes last, and its workers do not start.
struct Bad : RoundBench {
  StreamNumber a, b, c{};
  explicit Bad(RoundOptions round_options = one_to_three, bool trained = true) : RoundBench{round_options}, a{join("a")}, b{join("b")} {
    pass(options.last_call);
    REQUIRE(world(a) == "a b");
    say(a, WorkersAreJob{generation()});
    if (trained) say(a, Progress{generation(), 5});
    c = join("c");
    pass(2s);
    acknowledge(a, "a"), acknowledge(b, "b");  // the world grows by it
    REQUIRE(world(c) == "a b c");
  }
  [[nodiscard]] static WorkerFailed at_start(const Generation& generation, std::int32_t code = 127) {
    WorkerFailed failed{generation, 0, code, fmt::format("exit code {}", code), false, Duration{0}, {}};
    failed.before_session = true;
    return failed;
  }
  void all_acknowledge() { acknowledge(a, "a"), acknowledge(b, "b"), acknowledge(c, "c"); }
  void fail_at_start(std::int32_t code = 127) {
    say(c, at_start(generation(), code));
    all_acknowledge();
  }
};

}  // namespace

TEST_CASE("a node whose workers keep failing at their start is excluded, and the others go on", "[round][exclude]") {
  Bad bench;
  for (int i = 0; i < 2; ++i) {
    bench.fail_at_start();
    CHECK(bench.world(bench.c) == "a b c");  // it may have been chance
  }
  bench.fail_at_start();
  CHECK(bench.world(bench.a) == "a b");
  CHECK(bench.world(bench.c).empty());
  CHECK(bench.last<World>(bench.a)->restarts.used == 0);
  bench.pass(status_debounce);
  CHECK(
      bench.last<Waiting>(bench.c)->why ==
      "excluded: its workers failed 3 times in a row at their start (the last one by exit code 127), and the others go on without it; it tries again in 1 s");
  SECTION("it tries again with a back-off that grows, as long as it fails") {
    std::size_t generations = bench.begun.size();
    for (const Duration wait : {1s, 2s, 4s, 8s}) {
      bench.pass(wait - status_debounce - 10ms);
      CHECK(bench.begun.size() == generations);
      bench.say(bench.a, Progress{bench.generation(), 6 + generations});
      bench.pass(3s);
      bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");  // the world grows by it
      CHECK(bench.world(bench.c) == "a b c");
      bench.fail_at_start();
      CHECK(bench.world(bench.a) == "a b");
      CHECK(bench.world(bench.c).empty());
      CHECK_FALSE(bench.round.verdict());
      generations = bench.begun.size();
      bench.pass(status_debounce);
    }
    CHECK(bench.last<World>(bench.a)->restarts.used == 0);
  }
  SECTION("a step that is decided with it ends the row") {
    bench.pass(3s);
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
    REQUIRE(bench.world(bench.c) == "a b c");
    bench.say(bench.a, Progress{bench.generation(), 6});
    bench.fail_at_start();
    CHECK(bench.world(bench.c) == "a b c");
  }
  SECTION("another agent of that node is excluded as well") {
    bench.break_stream(bench.c);
    bench.c = bench.join("c", 2);
    bench.pass(500ms);
    CHECK(bench.world(bench.c).empty());
  }
  SECTION("it hears the verdict") {
    bench.say(bench.a, JobFinished{bench.generation()});
    CHECK(bench.last<Verdict>(bench.c)->exit_code == 0);
  }
}

TEST_CASE("an excluded node is taken where the others are fewer than the minimum, and then costs restarts", "[round][exclude]") {
  Bad bench{{.nodes_min = 2, .nodes_max = 3}};
  for (int i = 0; i < 3; ++i) bench.fail_at_start();
  REQUIRE(bench.world(bench.a) == "a b");
  const std::size_t begun = bench.begun.size();
  bench.pass(100ms);
  bench.break_stream(bench.b);
  bench.pass(300ms);
  bench.acknowledge(bench.a, "a");
  CHECK_THAT(bench.said.back(),
             Contains("1 of at least 2 nodes are here. Excluded node c is admitted in 1 s unless another node joins first"));
  CHECK(bench.begun.size() == begun);
  SECTION("not at once: the one that is missing may be on its way back") {
    bench.b = bench.join("b", 2);
    CHECK(bench.begun.size() == begun + 1);
    CHECK(bench.world(bench.b) == "a b");
    return;
  }
  bench.pass(700ms);
  CHECK(bench.world(bench.a) == "a c");
  const auto fail = [&] {
    bench.say(bench.c, Bad::at_start(bench.generation()));
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.c, "c");
    bench.pass(start_pause * 8);
  };
  fail();  // free: there was progress
  for (int i = 0; i < 3; ++i) fail();
  CHECK_FALSE(bench.round.verdict());
  fail();
  REQUIRE(bench.round.verdict());
  CHECK(bench.round.verdict()->exit_code == 127);
}

TEST_CASE("a worker that dies before its session is charged to the job's restart budget", "[round][exclude]") {
  SECTION("three restarts where it is a Job and nobody can be done without") {
    Pair bench;
    bench.say(bench.a, WorkersAreJob{bench.generation()});
    for (int i = 0; i < 3; ++i) {
      bench.say(bench.b, Bad::at_start(bench.generation()));
      bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
      bench.pass(start_pause * 4);
      CHECK_FALSE(bench.round.verdict());
    }
    bench.say(bench.b, Bad::at_start(bench.generation()));
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
    CHECK(bench.round.verdict()->exit_code == 127);
  }
  SECTION("none where it is none: such a failure ends the job at once") {
    Pair bench;
    bench.say(bench.b, Bad::at_start(bench.generation()));
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
    CHECK(bench.round.verdict()->exit_code == 127);
  }
  SECTION("with an explicit 0 the node is excluded at once") {
    Bad bench{{.nodes_min = 1, .nodes_max = 3, .max_restarts = 0}};
    bench.fail_at_start();
    CHECK_FALSE(bench.round.verdict());
    CHECK(bench.world(bench.a) == "a b");
  }
}

TEST_CASE("a failure before the first session waits until it is known whether the program is a Job, where the others can go on",
          "[round][exclude]") {
  RoundBench bench{one_to_three};
  const auto a = bench.join("a"), b = bench.join("b"), c = bench.join("c");
  REQUIRE(bench.world(a) == "a b c");
  bench.say(c, Bad::at_start(bench.generation()));
  CHECK(bench.count<Revoke>(a) == 0);
  // What failed is told at once.
  CHECK_THAT(bench.said.back(),
             Contains("worker 4 of node c ended by exit code 127. A program that is not a Job has no restart left. Waiting up to 10 s"));
  for (const auto& stream : {a, b, c}) CHECK_THAT(bench.last<Waiting>(stream)->why, Contains("worker 4 of node c ended by exit code 127"));
  SECTION("a worker of theirs says so: it costs no restart") {
    bench.pass(1s);
    bench.say(a, WorkersAreJob{bench.generation()});
    CHECK(bench.count<Revoke>(a) == 1);
    bench.acknowledge(a, "a"), bench.acknowledge(b, "b"), bench.acknowledge(c, "c");
    CHECK(bench.begun.size() == 2);
    CHECK(bench.last<World>(a)->restarts.used == 0);
  }
  SECTION("nobody does: it is none, and has no restarts") {
    bench.pass(kind_known_within);
    bench.acknowledge(a, "a"), bench.acknowledge(b, "b"), bench.acknowledge(c, "c");
    CHECK(bench.round.verdict()->exit_code == 127);
  }
  SECTION("others fail as well: nothing is waited for") {
    bench.say(b, Bad::at_start(bench.generation(), 3));
    CHECK(bench.count<Revoke>(a) == 1);
    bench.acknowledge(a, "a"), bench.acknowledge(b, "b"), bench.acknowledge(c, "c");
    CHECK(bench.round.verdict()->exit_code == 127);
  }
}

TEST_CASE("a node that fails again and again after its start is excluded too", "[round][exclude]") {
  Bad bench;
  const auto fail = [&] {
    bench.say(bench.c, failure(bench.generation(), true));
    bench.all_acknowledge();
    bench.pass(start_pause * 4);
  };
  fail(), fail();
  CHECK(bench.world(bench.c) == "a b c");
  bench.say(bench.c, failure(bench.generation(), true));
  bench.all_acknowledge();
  CHECK(bench.world(bench.a) == "a b");
  CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("node c is excluded, and the others go on"));
  CHECK_FALSE(bench.round.verdict());
}

TEST_CASE("only a new step ends a node's row of failures, not one that is done again", "[round][exclude]") {
  Bad bench;
  bench.say(bench.a, Progress{bench.generation(), 50});
  const auto fail_after = [&](std::uint64_t step) {
    bench.say(bench.a, Progress{bench.generation(), step});
    bench.say(bench.c, failure(bench.generation(), true));
    bench.all_acknowledge();
    bench.pass(start_pause * 4);
  };
  SECTION("done again, behind the newest") {
    for (int i = 0; i < 2; ++i) fail_after(40);
    bench.say(bench.a, Progress{bench.generation(), 40});
    bench.say(bench.c, failure(bench.generation(), true));
    CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("node c is excluded, and the others go on"));
  }
  SECTION("new") {
    for (std::uint64_t i = 1; i < 5; ++i) fail_after(50 + i);
    CHECK(bench.world(bench.c) == "a b c");
  }
  CHECK_FALSE(bench.round.verdict());
}

TEST_CASE("an agent that is started again under a new name has the record of its place", "[round][exclude]") {
  RoundBench bench{{.nodes_min = 1, .nodes_max = 3, .last_call = 1s}};
  const auto a = bench.join("a");
  bench.pass(1s);
  bench.say(a, WorkersAreJob{bench.generation()});
  bench.say(a, Progress{bench.generation(), 5});
  int agents = 0;
  std::string name;
  const auto comes = [&](const std::string& place) {
    Join join = bench.a_join(name = fmt::format("c.{}", ++agents));
    join.place = place;
    const auto stream = bench.join(join);
    bench.pass(2s);
    bench.acknowledge(a, "a");
    return stream;
  };
  const auto fails_and_goes = [&](StreamNumber stream) {
    bench.say(stream, failure(bench.generation(), true));
    bench.break_stream(stream);
    bench.pass(300ms);
    bench.acknowledge(a, "a");
    bench.pass(start_pause * 20);
    bench.say(a, Progress{bench.generation(), 50 + static_cast<std::uint64_t>(agents)});  // without it
  };
  const auto out = [&](StreamNumber stream) { return bench.world(stream).empty(); };
  SECTION("it is excluded after its third failure, whoever it is by then") {
    for (int i = 0; i < 2; ++i) fails_and_goes(comes("here"));
    const auto third = comes("here");
    REQUIRE(bench.world(third) == fmt::format("a {}", name));
    bench.say(third, failure(bench.generation(), true));
    bench.acknowledge(a, "a"), bench.acknowledge(third, name);
    CHECK(bench.world(a) == "a");
    bench.break_stream(third);
    Join again = bench.a_join("c.4");
    again.place = "here";
    const auto fourth = bench.join(again);
    bench.pass(500ms);
    REQUIRE(bench.last<Waiting>(fourth));
    CHECK_THAT(bench.last<Waiting>(fourth)->why, Contains("excluded: its workers failed 3 times in a row"));
    CHECK_FALSE(bench.round.verdict());
  }
  SECTION("not for what failed elsewhere") {
    for (int i = 0; i < 4; ++i) {
      const auto stream = comes(fmt::format("place {}", i));
      CHECK_FALSE(out(stream));
      fails_and_goes(stream);
    }
  }
  SECTION("who says the place of one that is there has a record by name, and harms only itself") {
    const auto honest = comes("here");
    for (int i = 0; i < 3; ++i) {
      const auto forger = comes("here");
      bench.acknowledge(honest, "c.1");
      bench.say(forger, failure(bench.generation(), true));
      bench.acknowledge(honest, "c.1");
      bench.break_stream(forger);
      bench.pass(300ms);
      bench.acknowledge(a, "a");
      bench.pass(start_pause * 20);
    }
    CHECK_FALSE(out(honest));
  }
}

TEST_CASE("a wrong configuration of one node ends no job that has trained with it elsewhere", "[round][exclude]") {
  SECTION("the node is excluded at once") {
    Bad bench;
    WorkerFailed wrong = failure(bench.generation(), true, exit_code_configuration);
    bench.say(bench.c, wrong);
    bench.all_acknowledge();
    CHECK_FALSE(bench.round.verdict());
    CHECK(bench.world(bench.a) == "a b");
    bench.pass(255s);  // each try would cost the others two generations, and a person has to change something first
    CHECK(bench.world(bench.a) == "a b");
  }
  SECTION("nobody has trained: it is the job's") {
    Bad bench{one_to_three, false};
    bench.say(bench.c, failure(bench.generation(), true, exit_code_configuration));
    bench.all_acknowledge();
    CHECK(bench.round.verdict()->exit_code == exit_code_configuration);
  }
}

TEST_CASE("a new coordinator knows from the other members that the job has trained", "[round][exclude]") {
  const World held = *Bad{}.last<World>(StreamNumber{1});
  RoundBench bench{one_to_three, fresh_setup()};
  const auto comes = [&](const std::string& node, bool has_trained) {
    Join join = bench.a_join(node);
    join.last = has_trained ? held.generation : Generation{};
    join.has_trained = has_trained;
    return bench.join(join);
  };
  const auto begins = [&](bool first, bool second, bool third) {
    const std::array all{comes("a", first), comes("b", second), comes("c", third)};
    REQUIRE(bench.world(all[2]) == "a b c");
    bench.say(all[0], WorkersAreJob{bench.generation()});
    return all;
  };
  const auto ends_by = [&](const std::array<StreamNumber, 3>& all, std::int32_t code) {
    bench.say(all[2], failure(bench.generation(), true, code));
    bench.acknowledge(all[0], "a"), bench.acknowledge(all[1], "b"), bench.acknowledge(all[2], "c");
  };
  SECTION("so a newcomer's wrong configuration excludes its node") {
    const auto all = begins(true, true, false);
    ends_by(all, exit_code_configuration);
    CHECK_FALSE(bench.round.verdict());
    CHECK(bench.world(all[0]) == "a b");
  }
  SECTION("so does that of a node that has trained itself, where its machine has changed since") {
    const auto all = begins(true, true, true);
    ends_by(all, exit_code_configuration);
    CHECK_FALSE(bench.round.verdict());
    CHECK(bench.world(all[0]) == "a b");
  }
  SECTION("not from the node that is wrong") {
    ends_by(begins(false, false, true), exit_code_configuration);
    REQUIRE(bench.round.verdict());
    CHECK(bench.round.verdict()->exit_code == exit_code_configuration);
  }
  SECTION("not from a node that has no place in the world") {
    const auto all = begins(false, false, false);
    comes("d", true);
    ends_by(all, exit_code_configuration);
    REQUIRE(bench.round.verdict());
    CHECK(bench.round.verdict()->exit_code == exit_code_configuration);
  }
  SECTION("what they say is no progress: another failure costs what it cost without it") {
    const bool has_trained = GENERATE(true, false);
    const auto all = begins(has_trained, has_trained, has_trained);
    ends_by(all, 3);
    CHECK(bench.last<World>(all[0])->restarts.used == 1);
    bench.say(all[0], Progress{bench.generation(), 1});  // the first step that this coordinator hears of, as ever
    ends_by(all, 3);
    CHECK(bench.last<World>(all[0])->restarts.used == 1);
  }
}

TEST_CASE("a failure that a lost member explains does not count for its node", "[round][exclude]") {
  Bad bench;
  bench.fail_at_start(), bench.fail_at_start();
  bench.break_stream(bench.b);
  bench.say(bench.c, Bad::at_start(bench.generation()));
  bench.pass(300ms);
  bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.c, "c");
  CHECK(bench.world(bench.a) == "a c");
}

TEST_CASE("of a Job no node is done before a worker of it opened its session", "[round][exclude]") {
  Bad bench;
  bench.say(bench.c, WorkersDone{bench.generation(), true});
  REQUIRE(bench.count<Revoke>(bench.a) >= 1);
  CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("exit code 0 before it opened its session"));
  SECTION("whatever is known first") {
    RoundBench fresh{two};
    const auto a = fresh.join("a"), b = fresh.join("b");
    fresh.say(b, WorkersDone{fresh.generation(), true});
    CHECK(fresh.count<Revoke>(a) == 0);
    fresh.say(a, WorkersAreJob{fresh.generation()});
    CHECK(fresh.count<Revoke>(a) == 1);
  }
}

}  // namespace elrun::test
