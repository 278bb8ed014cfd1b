// Round: verdicts, and how long the coordinator stays after them.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

TEST_CASE("the job is done when all workers are", "[round]") {
  Pair bench{{.nodes_min = 1, .nodes_max = 3, .max_restarts = 1}};
  const auto done = [&](StreamNumber stream) { bench.say(stream, WorkersDone{bench.generation()}); };
  done(bench.a);
  CHECK_FALSE(bench.round.verdict());
  SECTION("all") {
    done(bench.b);
    CHECK(bench.last<Verdict>(bench.a)->exit_code == 0);
    CHECK(bench.last<Verdict>(bench.b)->exit_code == 0);
  }
  SECTION("some are, and another fails: all run again") {
    bench.say(bench.b, failure(bench.generation()));
    bench.acknowledge(bench.a, "a");
    bench.acknowledge(bench.b, "b");
    CHECK(bench.world(bench.a) == "a b");
    done(bench.b);
    CHECK_FALSE(bench.round.verdict());
    done(bench.a);
    CHECK(bench.round.verdict()->exit_code == 0);
  }
  SECTION("a node that is done may die") {
    bench.break_stream(bench.a);
    bench.pass(1s);
    CHECK(bench.count<Revoke>(bench.b) == 0);
    done(bench.b);
    CHECK(bench.round.verdict()->exit_code == 0);
  }
  SECTION("nobody is taken in while somebody is done") {
    bench.join("c");
    bench.pass(1h);
    CHECK(bench.count<Revoke>(bench.b) == 0);
  }
}

TEST_CASE("a job that its members decided to be done is a success, whatever fails afterwards", "[round]") {
  Pair bench;
  SECTION("at once") { bench.say(bench.a, JobFinished{bench.generation()}); }
  SECTION("also when the generation was revoked meanwhile") {
    bench.break_stream(bench.b);
    bench.pass(1s);
    bench.say(bench.a, JobFinished{bench.generation()});
  }
  CHECK(bench.last<Verdict>(bench.a)->exit_code == 0);
  bench.say(bench.a, failure(bench.generation()));
  bench.break_stream(bench.a);
  CHECK(bench.round.verdict()->exit_code == 0);
}

TEST_CASE("the coordinator may exit when every node has the verdict, or the linger time is over", "[round]") {
  RoundBench bench{two};
  const auto host = bench.open_stream(true);
  bench.say(host, bench.a_join("a"));
  const auto b = bench.join("b");
  CHECK_FALSE(bench.round.may_end(bench.now));
  bench.say(host, JobFinished{bench.generation()});
  CHECK_FALSE(bench.round.may_end(bench.now));
  SECTION("its stream ends: it has it") {
    bench.break_stream(b);
    CHECK(bench.round.may_end(bench.now));
  }
  SECTION("it stays away") {
    bench.pass(5s);
    CHECK(bench.round.may_end(bench.now));
  }
}

TEST_CASE("the end of a stream does not confirm the verdict, where the node says that it confirms it", "[round]") {
  RoundBench bench{two};
  const auto host = bench.join_in_process("a");
  Join confirming = bench.a_join("b");
  confirming.confirms_verdict = true;
  const auto b = bench.join(confirming);
  bench.say(b, VerdictReceived{});  // there is none yet
  CHECK(bench.round.running());
  bench.say(host, JobFinished{bench.generation()});
  REQUIRE(bench.count<Verdict>(b) == 1);
  SECTION("it confirms: its stream is over, and nobody is waited for") {
    bench.say(b, VerdictReceived{});
    CHECK_FALSE(bench.open.contains(b));
    CHECK(bench.round.may_end(bench.now));
  }
  SECTION("its stream breaks: it may come again, hears it again, and confirms") {
    bench.break_stream(b);
    bench.pass(4s);
    CHECK_FALSE(bench.round.may_end(bench.now));
    confirming.last = bench.generation();
    const auto again = bench.join(confirming);
    CHECK(bench.count<Verdict>(again) == 1);
    CHECK_FALSE(bench.round.may_end(bench.now));
    bench.say(again, VerdictReceived{});
    CHECK(bench.round.may_end(bench.now));
  }
  SECTION("but it does not come again: the linger is for that") {
    bench.break_stream(b);
    bench.pass(5s);
    CHECK(bench.round.may_end(bench.now));
  }
  SECTION("the node in this process needs no words") {
    bench.break_stream(host);
    bench.say(b, VerdictReceived{});
    CHECK(bench.round.may_end(bench.now));
  }
}

TEST_CASE("a node whose stream was broken when the verdict was given gets it when it reconnects", "[round]") {
  Pair bench;
  bench.break_stream(bench.b);
  bench.say(bench.a, JobFinished{bench.generation()});
  bench.break_stream(bench.a);
  bench.pass(1s);
  CHECK_FALSE(bench.round.may_end(bench.now));
  const auto b = bench.join("b");
  CHECK(bench.count<Verdict>(b) == 1);
  bench.break_stream(b);
  CHECK(bench.round.may_end(bench.now));
}

TEST_CASE("the coordinator of a done job stays a moment, so that late nodes learn that it is done", "[round][late]") {
  const auto lines = [](const RoundBench& bench) {
    return std::count_if(bench.said.begin(), bench.said.end(),
                         [](const std::string& line) { return line.find("the coordinator stays") != std::string::npos; });
  };
  const auto ended = [](RoundBench& bench, StreamNumber a, StreamNumber b) {
    bench.say(a, JobFinished{bench.generation()});
    REQUIRE(bench.round.verdict());
    bench.say(a, VerdictReceived{}), bench.say(b, VerdictReceived{});
  };
  SECTION("where there is room for more nodes, for 10 s") {
    Pair bench{one_to_three};
    ended(bench, bench.a, bench.b);
    CHECK_FALSE(bench.round.may_end(bench.now));
    CHECK(lines(bench) == 1);
    CHECK_THAT(bench.said.back(), Contains("the job is done; the coordinator stays for another 10 s: 1 node more may come (--nnodes)"));
    bench.pass(9s);
    CHECK(lines(bench) == 1);
    CHECK_FALSE(bench.round.may_end(bench.now));
    const auto late = bench.join("c");
    CHECK(bench.last<Verdict>(late)->exit_code == 0);
    CHECK(bench.last<Verdict>(late)->generation == bench.generation());
    bench.pass(1s);
    CHECK(bench.round.may_end(bench.now));
  }
  SECTION("not where as many as may be have heard it") {
    Pair bench;
    ended(bench, bench.a, bench.b);
    CHECK(bench.round.may_end(bench.now));
    CHECK(lines(bench) == 0);
  }
  SECTION("a member that was lost before may come back") {
    Pair bench{{.nodes_min = 1, .nodes_max = 2}};
    bench.break_stream(bench.b);
    bench.pass(1s);
    bench.acknowledge(bench.a, "a");
    bench.say(bench.a, JobFinished{bench.generation()});
    bench.say(bench.a, VerdictReceived{});
    CHECK_FALSE(bench.round.may_end(bench.now));
  }
  SECTION("nor after a failure: who comes then may try again") {
    Pair bench{one_to_three};
    bench.say(bench.b, failure(bench.generation()));
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
    REQUIRE(bench.round.verdict());
    bench.say(bench.a, VerdictReceived{}), bench.say(bench.b, VerdictReceived{});
    CHECK(bench.round.may_end(bench.now));
  }
}

}  // namespace elrun::test
