// Round: failures of workers, their root cause, and what they cost.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

TEST_CASE("without restarts the first failure is the verdict, with its exit code, for all", "[round]") {
  Pair bench;
  const auto spare = bench.join("c");
  bench.say(bench.b, failure(bench.generation()));
  CHECK(bench.last<Revoke>(bench.a));  // nobody works on for a job that has failed
  CHECK_FALSE(bench.round.verdict());
  bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
  for (const StreamNumber stream : {bench.a, bench.b, spare}) {
    REQUIRE(bench.last<Verdict>(stream));
    CHECK(bench.last<Verdict>(stream)->exit_code == 3);
    CHECK(bench.last<Verdict>(stream)->report ==
          "generation 1: worker 3 (node b, local rank 1) ended by exit code 3; no restart is allowed (--max_restarts)");
  }
  bench.say(bench.a, failure(bench.generation(), false, 9));
  CHECK(bench.round.verdict()->exit_code == 3);
  CHECK(bench.last<Verdict>(bench.join("late"))->exit_code == 3);
  CHECK(bench.begun.size() == 1);
}

TEST_CASE("a worker that fails before it was in a world is told by the place of the worker before it, and has no rank", "[round]") {
  Pair bench;
  WorkerFailed failed = failure(bench.generation());
  failed.rank = 0, failed.successor_in = Generation{7, {{1, 2}}};
  bench.say(bench.b, failed);
  const auto revoke = bench.last<Revoke>(bench.a);
  REQUIRE(revoke);
  CHECK(revoke->why.what.starts_with("the successor of rank 0 of generation 7 (node b, local rank 1) ended by exit code 3"));
  CHECK_FALSE(revoke->why.rank);
  CHECK(end_cause_of(*revoke) == EndCause::failure);
  bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
  const auto& deaths = bench.round.verdict()->deaths;
  REQUIRE(deaths.size() == 1);
  CHECK(deaths[0].rank == 0);
  CHECK(deaths[0].generation == *failed.successor_in);
}

TEST_CASE("the verdict of a failed job waits for its workers to end, but not for long", "[round]") {
  Pair bench;
  bench.say(bench.b, failure(bench.generation()));
  SECTION("a node whose workers do not end has its time, and the verdict then") {
    bench.acknowledge(bench.b, "b");
    bench.pass(root_cause_window - 1ms);
    CHECK_FALSE(bench.round.verdict());
    bench.pass(1ms);
    REQUIRE(bench.last<Verdict>(bench.a));
    CHECK(bench.last<Verdict>(bench.a)->exit_code == 3);
  }
  SECTION("nodes that go or are lost meanwhile are named, and change nothing") {
    bench.say(bench.b, Leave{"SIGTERM came"});
    bench.break_stream(bench.a);
    bench.pass(1s);
    REQUIRE(bench.round.verdict());
    CHECK(bench.round.verdict()->exit_code == 3);
    CHECK_THAT(bench.round.verdict()->report, Contains("worker 3") && Contains("; gone as well: a (its stream broke"));
  }
  SECTION("no generation begins meanwhile") {
    bench.acknowledge(bench.b, "b");
    bench.join("c"), bench.join("d");
    CHECK(bench.begun.size() == 1);
  }
  SECTION("members who have decided that the job is over outdo it") {
    bench.say(bench.a, JobFinished{bench.generation()});
    CHECK(bench.round.verdict()->exit_code == 0);
    CHECK(bench.round.verdict()->deaths.empty());
    bench.pass(1min);
    CHECK(bench.count<Verdict>(bench.b) == 1);
  }
}

TEST_CASE("a worker that failed while it lived is not said to have ended, and its end is in the verdict once it is known", "[round]") {
  Pair bench{{.nodes_min = 2, .nodes_max = 2, .max_restarts = 0}};
  bench.pass(10s);
  WorkerFailed failed{bench.generation(), 1, 1, "a failure of its own (NCCL failed)", true, {}, {}};
  failed.death.pid = 77;
  bench.say(bench.b, failed);
  bench.acknowledge(bench.a, "a");
  SECTION("it lives on") {
    bench.acknowledge(bench.b, "b");
    REQUIRE(bench.round.verdict());
    CHECK(bench.round.verdict()->exit_code == 1);
    CHECK_THAT(bench.round.verdict()->report, Contains("(node b, local rank 1) cannot go on: a failure of its own (NCCL failed)"));
    CHECK(bench.round.verdict()->deaths.at(0).lived());
  }
  SECTION("it is killed") {
    failed.exit_code = 137, failed.what = "signal 9 (SIGKILL)", failed.death.wall_ns = 5;
    bench.say(bench.b, failed);
    bench.acknowledge(bench.b, "b");
    REQUIRE(bench.round.verdict());
    CHECK(bench.round.verdict()->exit_code == 137);
    CHECK_THAT(bench.round.verdict()->report, Contains("(node b, local rank 1) ended by signal 9 (SIGKILL)"));
    CHECK(bench.round.verdict()->deaths.size() == 1);
  }
}

TEST_CASE("the root cause is the failure with the earliest timestamp, not the first report", "[round]") {
  const auto died = [](const Generation& generation, std::uint32_t local_rank, std::int32_t code, Duration ago) {
    WorkerFailed failed{generation, local_rank, code, fmt::format("exit code {}", code), false, ago, {}};
    failed.death.exit_code = code;
    failed.death.error = fmt::format("error {}", code);
    failed.death.traceback = std::string(2000, 't') + "the end";
    return failed;
  };
  Pair bench{{.nodes_min = 2, .nodes_max = 2, .max_restarts = 1}};
  const Generation first = bench.generation();
  bench.pass(10s);
  SECTION("the next generation is told the cause of its own") {
    bench.say(bench.b, died(first, 1, 3, 10ms));
    bench.say(bench.a, died(first, 0, 4, 20ms));
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
    REQUIRE(bench.last<World>(bench.a)->generation.number == 2);
    CHECK_THAT(bench.last<World>(bench.a)->cause, Contains("worker 0 (node a, local rank 0) ended by exit code 4"));
    CHECK(bench.last<World>(bench.a)->restarts == RestartCounts{1, 1});  // one loss, however many saw it
    bench.say(bench.b, died(bench.generation(), 0, 6, 0s));
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
    REQUIRE(bench.round.verdict());
    CHECK(bench.round.verdict()->deaths.size() == 1);  // those of the generation before are its own
  }
  SECTION("the verdict names all, the first in full, with what the round knows of each") {
    Pair none{{.nodes_min = 2, .nodes_max = 2, .max_restarts = 0}};
    none.pass(10s);
    none.say(none.b, died(first, 1, 3, 1ms));
    none.say(none.a, died(first, 0, 4, 5ms));
    none.say(none.a, died(first, 0, 4, 900ms));  // of the same worker, said again
    none.pass(100ms);
    none.say(none.a, died(first, 1, 5, 104ms));  // a record of before, read when the worker had ended
    none.acknowledge(none.b, "b"), none.acknowledge(none.a, "a");
    const auto verdict = none.last<Verdict>(none.b);
    REQUIRE(verdict);
    CHECK(verdict->exit_code == 4);
    CHECK_THAT(verdict->report, Contains("worker 0 (node a, local rank 0) ended by exit code 4"));
    REQUIRE(verdict->deaths.size() == 3);
    CHECK(verdict->deaths[0].error == "error 4");
    CHECK(verdict->deaths[0].node == NodeId{"a"});
    CHECK(verdict->deaths[0].generation == first);
    CHECK(verdict->deaths[0].rank == 0);
    CHECK(verdict->deaths[0].traceback.size() == 2007);
    CHECK(verdict->deaths[1].error == "error 5");
    CHECK(verdict->deaths[1].rank == 1);
    CHECK(verdict->deaths[1].traceback.size() == death_beside_max);
    CHECK_THAT(verdict->deaths[1].traceback, Catch::Matchers::EndsWith("the end"));
    CHECK(verdict->deaths[2].error == "error 3");
    CHECK(verdict->deaths[2].rank == 3);
  }
  SECTION("nothing failed before its generation began") {
    bench.say(bench.b, died(first, 1, 3, 24h));
    bench.say(bench.a, died(first, 0, 4, 23h));
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
    CHECK_THAT(bench.last<World>(bench.a)->cause, Contains("exit code 3"));  // of two such, the first that was heard of
  }
  SECTION("a worker that fails after a node was lost is a consequence") {
    bench.break_stream(bench.b);
    bench.pass(1s);
    bench.say(bench.a, died(first, 0, 4, 900ms));
    bench.acknowledge(bench.a, "a");
    bench.join("b", 2);
    CHECK_THAT(bench.last<World>(bench.a)->cause, Contains("node b is lost"));
    CHECK(bench.last<World>(bench.a)->restarts.used == 0);
  }
}

TEST_CASE("a worker that fails because a node is being lost costs no restart", "[round]") {
  const std::int32_t allowed = GENERATE(0, 1);
  Pair bench{{.nodes_min = 2, .nodes_max = 2, .max_restarts = allowed}};
  const World held_b = *bench.last<World>(bench.b);
  bench.break_stream(bench.b);
  bench.pass(20ms);
  bench.say(bench.a, failure(bench.generation()));  // its collective failed
  bench.acknowledge(bench.a, "a");
  CHECK_FALSE(bench.round.verdict());
  SECTION("the node does not return") {
    bench.pass(1s);
    CHECK_FALSE(bench.round.verdict());
    const auto b = bench.join("b", 2);
    REQUIRE(bench.last<World>(b));
    CHECK(bench.last<World>(b)->restarts.used == 0);
    bench.say(b, failure(bench.generation()));  // this one is a failure of its own
    bench.acknowledge(bench.a, "a"), bench.acknowledge(b, "b", 2);
    CHECK(bench.round.verdict().has_value() == (allowed == 0));
  }
  SECTION("the node returns: it was the worker") {
    const auto b = bench.resume("b", held_b);
    bench.acknowledge(b, "b");
    CHECK(bench.round.verdict().has_value() == (allowed == 0));
    if (allowed > 0) CHECK(bench.last<World>(b)->restarts.used == 1);
  }
}

TEST_CASE("a verdict names a bounded number of workers", "[round]") {
  RoundOptions many{.nodes_min = 1, .nodes_max = 1};
  RoundBench bench{many};
  Join join = bench.a_join("a");
  join.workers = 100;
  const auto a = bench.join(join);
  for (std::uint32_t i = 0; i < 100; ++i) bench.say(a, WorkerFailed{bench.generation(), i, 1, "exit code 1", false, Duration{0}, {}});
  bench.acknowledge(a, "a");
  REQUIRE(bench.round.verdict());
  CHECK(bench.round.verdict()->deaths.size() == deaths_max);
  CHECK(bench.round.verdict()->deaths.front().rank == 0);
}

TEST_CASE("a plain program has as many restarts as --max_restarts says", "[round]") {
  Pair bench{{.nodes_min = 2, .nodes_max = 2, .max_restarts = 2}};
  for (std::uint32_t restart = 1; restart <= 2; ++restart) {
    bench.say(bench.a, Progress{bench.generation(), restart});  // counts for Jobs alone
    bench.say(bench.b, failure(bench.generation()));
    bench.say(bench.a, failure(bench.generation()));  // a consequence, which costs nothing
    bench.acknowledge(bench.a, "a");
    bench.acknowledge(bench.b, "b");
    bench.pass(start_pause);  // the second time
    CHECK(bench.last<World>(bench.a)->restarts.generations == restart);
    CHECK_THAT(bench.last<World>(bench.a)->cause, Contains("worker 3"));
  }
  bench.say(bench.b, failure(bench.generation()));
  bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
  REQUIRE(bench.round.verdict());
  CHECK_THAT(bench.round.verdict()->report, Contains("all 2 restarts (--max_restarts) are used"));
}

TEST_CASE("repeated failures soon after the start back off, at no further restart", "[round]") {
  Pair bench{{.nodes_min = 2, .nodes_max = 2, .max_restarts = 100}};
  const auto fail = [&](std::int32_t code) {
    bench.say(bench.b, failure(bench.generation(), false, code));
    bench.acknowledge(bench.a, "a");
    bench.acknowledge(bench.b, "b");
  };
  const auto begun = [&] { return bench.begun.size(); };
  bench.pass(300ms);  // between two beats, when nothing else looks at the time
  fail(3);            // it had run for a while
  fail(3);
  CHECK(begun() == 3);  // once is no row
  SECTION("twice as long each time, up to a bound") {
    std::size_t generations = 3;
    for (const Duration pause : {1s, 2s, 4s, 8s, 16s, 16s}) {
      fail(3);
      bench.pass(pause - 1ms);
      CHECK(begun() == generations);
      bench.pass(1ms);
      CHECK(begun() == ++generations);
    }
    CHECK(bench.last<World>(bench.a)->restarts.used == 8);
  }
  SECTION("who waits is told why and until when") {
    fail(3);
    CHECK_THAT(bench.last<Revoke>(bench.a)->why.what,
               Contains("; restart 3 of 100 after a pause of 1 s, for it failed alike 2 times soon after its start"));
    bench.pass(status_debounce);
    CHECK(bench.last<Waiting>(bench.a)->why ==
          "the workers failed 2 times in a row with exit code 3 within 10 s of their start; they are started again in 1 s");
  }
  SECTION("not when they fail otherwise, or ran for a while") {
    fail(4);
    CHECK(begun() == 4);
    bench.pass(start_over_within);
    fail(4);
    CHECK(begun() == 5);
    fail(4);
    CHECK(begun() == 6);  // the first in a row again
  }
  SECTION("not when they are killed from outside") {
    for (const std::int32_t killed : {137, 137, 137, 143, 143}) fail(killed);
    CHECK(begun() == 8);
  }
  SECTION("not after progress") {
    bench.say(bench.a, Progress{bench.generation(), 1});
    fail(3);
    CHECK(begun() == 4);
  }
}

TEST_CASE("a failure of a Job costs a restart only if no new step was decided since the last one", "[round]") {
  const auto lose = [](Pair& bench) {
    bench.say(bench.b, failure(bench.generation(), true));
    bench.acknowledge(bench.a, "a");
    bench.acknowledge(bench.b, "b");
    bench.pass(start_pause * 4);  // longer than any pause here
  };
  SECTION("with progress, without end") {
    Pair bench;
    for (int i = 0; i < 20; ++i) {
      bench.say(bench.a, Progress{bench.generation(), static_cast<std::uint64_t>(i + 1)});
      lose(bench);
    }
    CHECK_FALSE(bench.round.verdict());
    CHECK(bench.last<World>(bench.a)->restarts.generations == 20);
  }
  SECTION("the same steps again are no progress: a job that always fails at one place ends") {
    Pair bench;
    for (int i = 0; i < 4; ++i) {
      CHECK_FALSE(bench.round.verdict());
      for (std::uint64_t step = 1; step <= 5; ++step) bench.say(bench.a, Progress{bench.generation(), step});
      lose(bench);
    }
    CHECK_FALSE(bench.round.verdict());  // the first of the four was free
    lose(bench);
    CHECK(bench.round.verdict());
  }
  SECTION("without, three times") {
    Pair bench;
    for (int i = 0; i < 3; ++i) lose(bench);
    CHECK_FALSE(bench.round.verdict());
    lose(bench);
    CHECK(bench.round.verdict());
  }
  SECTION("a wrong configuration is not tried again") {
    Pair bench;
    WorkerFailed wrong = failure(bench.generation(), true);
    wrong.exit_code = exit_code_configuration;
    bench.say(bench.b, wrong);
    bench.pass(root_cause_window);
    REQUIRE(bench.round.verdict());
    CHECK(bench.round.verdict()->exit_code == exit_code_configuration);
    CHECK_THAT(bench.round.verdict()->report, Contains("a wrong configuration is not restarted"));
  }
  SECTION("an explicit 0 means none, whatever was decided") {
    Pair bench{{.nodes_min = 2, .nodes_max = 2, .max_restarts = 0}};
    bench.say(bench.a, Progress{bench.generation(), 1});
    lose(bench);
    CHECK(bench.round.verdict());
  }
}

TEST_CASE("lost nodes cost no restart", "[round]") {
  Pair bench;
  StreamNumber b = bench.b;
  for (std::uint64_t incarnation = 2; incarnation < 12; ++incarnation) {
    bench.break_stream(b);
    bench.pass(1s);
    bench.acknowledge(bench.a, "a");
    b = bench.join("b", incarnation);
    CHECK(bench.world(b) == "a b");
  }
}

TEST_CASE("messages about another generation are ignored", "[round]") {
  Pair bench;
  Generation other = bench.generation();
  other.lineage.bits[0] += 1;
  bench.say(bench.a, failure(other));
  bench.say(bench.a, JobFinished{other});
  bench.say(bench.a, WorkersDone{other});
  bench.say(bench.b, WorkersDone{other});
  CHECK_FALSE(bench.round.verdict());
  CHECK(bench.count<Revoke>(bench.a) == 0);
}

}  // namespace elrun::test
