// Round: newcomers of a Job start their workers before they get a place.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

namespace {

/// Nodes "a" and "b" train, and there is room for two more. Nodes that join prepare.
struct Trains : Pair {
  explicit Trains(RoundOptions round_options = {.nodes_min = 1, .nodes_max = 4, .last_call = 1s}, RoundSetup setup = bench_setup())
      : Pair{round_options, std::move(setup)} {
    say(a, WorkersAreJob{generation(), true});
    say(a, Progress{generation(), 5});
  }
  [[nodiscard]] Join a_newcomer(const std::string& node) const {
    Join join = a_join(node);
    join.prepares = true;
    return join;
  }
  StreamNumber newcomer(const std::string& node) { return join(a_newcomer(node)); }
  /// Its workers stay.
  [[nodiscard]] Join a_ready(const std::string& node) const {
    Join join = a_newcomer(node);
    join.preparedness = Preparedness::ready;
    return join;
  }
  using RoundBench::acknowledge;
  /// The workers of the generation are gone, or know of its end.
  void acknowledge(StreamNumber stream, Join join) {
    join.last = generation();
    say(stream, std::move(join));
  }
  [[nodiscard]] bool grows() const { return last<Revoke>(a).has_value(); }
  void members_acknowledge() { acknowledge(a, "a"), acknowledge(b, "b"); }
};

/// The same, where both are needed, and the job is given up after 60 s without.
Trains both_are_needed() {
  RoundSetup setup = bench_setup();
  setup.timeouts.join = 60s;
  return Trains{{.nodes_min = 2, .nodes_max = 4, .last_call = 1s}, setup};
}

}  // namespace

TEST_CASE("a newcomer starts its workers while the others train, and gets a place when they are ready", "[round][prepare]") {
  Trains bench;
  const StreamNumber c = bench.newcomer("c");
  const auto prepare = bench.last<Prepare>(c);
  REQUIRE(prepare);
  CHECK(prepare->beside.generation == bench.generation());
  CHECK(prepare->beside.seat == Seat{2, 4, 3, 6, 0});  // as if it were the last one
  CHECK(prepare->beside.key == Key256{});              // with which nobody acts for that generation
  CHECK(prepare->beside.address == "c.local");
  CHECK(prepare->beside.master_address == "a.local");
  bench.pass(1min);
  CHECK_FALSE(bench.grows());
  CHECK(bench.count<Prepare>(c) == 1);
  CHECK_THAT(bench.last<Waiting>(c)->why, Contains("the workers of this node start beside the others"));
  bench.say(c, MoreWorkers{bench.generation(), 2});
  bench.pass(growth_gather);
  REQUIRE(bench.grows());
  bench.members_acknowledge();
  CHECK(bench.world(c) == "a b c");
  CHECK(bench.count<Prepare>(c) == 1);
}

TEST_CASE("who is told to prepare: as many as there is room for, and only where it helps", "[round][prepare]") {
  SECTION("beside a Job's generation") {
    Pair plain{one_to_three};
    Join join = plain.a_join("c");
    join.prepares = true;
    const StreamNumber c = plain.join(join);
    CHECK(plain.count<Prepare>(c) == 0);
    plain.pass(growth_pause);
    CHECK(plain.last<Revoke>(plain.a));
  }
  SECTION("a node of an earlier version is taken in as it is") {
    Trains bench;
    const StreamNumber c = bench.join("c");
    CHECK(bench.count<Prepare>(c) == 0);
    bench.pass(growth_pause);
    CHECK(bench.grows());
  }
  SECTION("no more than there is room for; each with ranks of its own") {
    Trains bench;
    const StreamNumber c = bench.newcomer("c"), d = bench.newcomer("d"), e = bench.newcomer("e");
    CHECK(bench.last<Prepare>(c)->beside.seat.base_rank == 4);
    CHECK(bench.last<Prepare>(d)->beside.seat.base_rank == 6);
    CHECK(bench.last<Prepare>(d)->beside.seat.group_rank == 3);
    CHECK(bench.count<Prepare>(e) == 0);
    bench.pass(1min);
    CHECK_FALSE(bench.grows());  // for a spare that has not prepared
    bench.break_stream(c);
    bench.pass(1s);
    CHECK(bench.count<Prepare>(e) == 1);
  }
  SECTION("beside a Job whose libelrun cannot wait for a place it is taken in as it is") {
    Pair earlier{one_to_three};
    earlier.say(earlier.a, WorkersAreJob{earlier.generation()});
    Join join = earlier.a_join("c");
    join.prepares = true;
    CHECK(earlier.count<Prepare>(earlier.join(join)) == 0);
  }
  SECTION("nobody when the first member is done") {
    Trains bench;
    bench.say(bench.a, WorkersDone{bench.generation()});
    CHECK(bench.count<Prepare>(bench.newcomer("c")) == 0);
  }
}

TEST_CASE("a node whose workers fail before it has a place harms no other one", "[round][prepare]") {
  Trains bench;
  const StreamNumber c = bench.newcomer("c");
  const NotPrepared failed{bench.generation(), "exit code 127", 127, true};
  bench.say(c, failed);
  CHECK(bench.count<Prepare>(c) == 2);  // it may have been chance
  bench.say(c, failed);
  bench.say(c, failed);
  CHECK(bench.count<Prepare>(c) == 3);
  bench.pass(status_debounce);
  CHECK_THAT(bench.last<Waiting>(c)->why,
             Contains("excluded: its workers failed 3 times in a row at their start (the last one by exit code 127)"));
  bench.pass(1s);
  CHECK(bench.count<Prepare>(c) == 4);
  SECTION("it stays out for longer each time") {
    bench.say(c, failed);
    bench.pass(2s - 10ms);
    CHECK(bench.count<Prepare>(c) == 4);
    bench.pass(10ms);
    CHECK(bench.count<Prepare>(c) == 5);
  }
  SECTION("it gets a place as any other once they start") {
    bench.say(c, MoreWorkers{bench.generation(), 2});
    bench.pass(growth_pause);
    bench.members_acknowledge();
    CHECK(bench.world(c) == "a b c");
  }
  CHECK(bench.last<World>(bench.a)->restarts.used == 0);
  CHECK_FALSE(bench.round.verdict());
}

TEST_CASE("a wrong configuration at the start of a node keeps it out after one failure", "[round][prepare]") {
  Trains bench;
  const StreamNumber c = bench.newcomer("c");
  bench.say(c, NotPrepared{bench.generation(), "exit code 78", exit_code_configuration, true});
  CHECK(bench.count<Prepare>(c) == 1);
  SECTION("also where the coordinator is new, and has heard of no step yet") {
    RoundBench fresh{bench.options, fresh_setup()};
    const auto resumes = [&](const std::string& node, StreamNumber before) {
      Join join = fresh.a_resuming_join(node, *bench.last<World>(before));
      join.has_trained = true;
      return fresh.join(join);
    };
    const StreamNumber a = resumes("a", bench.a);
    resumes("b", bench.b);
    REQUIRE(fresh.last<Resumed>(a));
    fresh.say(a, WorkersAreJob{bench.generation(), true});
    const StreamNumber newcomer = fresh.join(bench.a_newcomer("c"));
    REQUIRE(fresh.count<Prepare>(newcomer) == 1);
    fresh.say(newcomer, NotPrepared{bench.generation(), "exit code 78", exit_code_configuration, true});
    CHECK(fresh.count<Prepare>(newcomer) == 1);
  }
}

TEST_CASE("a worker that ends after its node was ready costs the node its place, not the others their generation", "[round][prepare]") {
  Trains bench;
  const StreamNumber c = bench.newcomer("c");
  bench.say(c, MoreWorkers{bench.generation(), 2});
  bench.say(c, NotPrepared{bench.generation(), "signal 9 (SIGKILL)", 137, false});
  CHECK(bench.count<Prepare>(c) == 2);
  bench.pass(1min);
  CHECK_FALSE(bench.grows());
}

TEST_CASE("the next generation begins without a node that is not ready, unless it is needed", "[round][prepare]") {
  SECTION("the others are enough") {
    Trains bench;
    const StreamNumber c = bench.newcomer("c");
    bench.break_stream(bench.b);
    bench.pass(1s);
    bench.acknowledge(bench.a, "a");
    CHECK(bench.world(bench.a) == "a");
    CHECK(bench.world(c).empty());
    bench.say(c, MoreWorkers{bench.last<Prepare>(c)->beside.generation, 2});
    bench.pass(growth_pause);
    bench.acknowledge(bench.a, "a");
    CHECK(bench.world(c) == "a c");
  }
  SECTION("the others are too few: they wait until it is ready") {
    Trains bench{{.nodes_min = 2, .nodes_max = 3, .last_call = 1s}};
    const StreamNumber c = bench.newcomer("c");
    bench.break_stream(bench.b);
    bench.pass(1s);
    bench.acknowledge(bench.a, "a");
    CHECK(bench.begun.size() == 1);
    SECTION("which it is") {
      bench.say(c, MoreWorkers{bench.generation(), 2});
      CHECK(bench.world(c) == "a c");
    }
    SECTION("or until it has failed: then it starts its workers with them, as one of the minimum") {
      bench.say(c, NotPrepared{bench.generation(), "exit code 1", 1, true});
      CHECK(bench.world(c) == "a c");
    }
  }
}

TEST_CASE("a world that grows, or lost a node, begins without spares that have not prepared", "[round][prepare]") {
  Trains bench;
  const StreamNumber c = bench.newcomer("c"), d = bench.newcomer("d"), e = bench.newcomer("e");
  SECTION("it grows") {
    bench.say(c, MoreWorkers{bench.generation(), 2});
    bench.pass(growth_pause);
    bench.members_acknowledge();
    CHECK(bench.world(c) == "a b c");
    bench.say(d, MoreWorkers{bench.generation(), 2});
    bench.pass(2 * growth_pause);
    bench.members_acknowledge();
    bench.acknowledge(c, "c");
    CHECK(bench.world(d) == "a b c d");
    CHECK(bench.count<Prepare>(e) == 0);
  }
  SECTION("a node is lost") {
    bench.break_stream(bench.b);
    bench.pass(1s);
    bench.acknowledge(bench.a, "a");
    CHECK(bench.world(bench.a) == "a");
    bench.say(bench.a, WorkersAreJob{bench.generation(), true});
    CHECK(bench.count<Prepare>(e) == 1);
  }
}

TEST_CASE("a member whose workers have all died is left out, and starts them while the others train", "[round][prepare]") {
  Trains bench;
  const StreamNumber a = bench.a, b = bench.b;
  bench.say(b, failure(bench.generation(), true));
  bench.acknowledge(a, bench.a_ready("a"));
  CHECK(bench.world(a) == "a b");  // not before all have acknowledged
  bench.acknowledge(b, bench.a_newcomer("b"));
  CHECK(bench.world(a) == "a");
  CHECK(bench.begun.size() == 2);
  const auto prepare = bench.last<Prepare>(b);
  REQUIRE(prepare);
  CHECK(prepare->beside.generation == bench.generation());
  CHECK(prepare->beside.seat == Seat{1, 2, 2, 4, 0});
  bench.say(a, Progress{bench.generation(), 6});
  bench.pass(1min);
  CHECK(bench.begun.size() == 2);
  SECTION("it has its place again when they are ready") {
    bench.say(b, MoreWorkers{bench.generation(), 2});
    bench.say(a, Progress{bench.generation(), 7});
    bench.acknowledge(a, bench.a_ready("a"));
    CHECK(bench.world(a) == "a b");
    CHECK(bench.last<World>(a)->restarts.used == 0);
  }
  SECTION("if they fail at their start, that harms nobody") {
    for (int i = 0; i < 3; ++i) bench.say(b, NotPrepared{bench.generation(), "exit code 127", 127, true});
    bench.pass(status_debounce);
    CHECK_THAT(bench.last<Waiting>(b)->why, Contains("excluded"));
    CHECK(bench.begun.size() == 2);
  }
}

TEST_CASE("a world that has to wait for one start waits for all", "[round][prepare]") {
  const std::uint32_t needed = GENERATE(1u, 2u);
  Trains bench{{.nodes_min = needed, .nodes_max = 4, .last_call = 1s}};
  const StreamNumber a = bench.a, b = bench.b, c = bench.newcomer("c");
  bench.say(c, MoreWorkers{bench.generation(), 2});
  bench.pass(growth_pause);
  bench.acknowledge(a, bench.a_ready("a")), bench.acknowledge(b, bench.a_ready("b"));
  REQUIRE(bench.world(a) == "a b c");
  bench.say(a, WorkersAreJob{bench.generation(), true});
  bench.say(b, failure(bench.generation(), true));
  SECTION("two of three have no workers") {
    bench.acknowledge(a, bench.a_ready("a")), bench.acknowledge(b, bench.a_newcomer("b")), bench.acknowledge(c, bench.a_newcomer("c"));
    CHECK(bench.world(a) == (needed == 1 ? "a" : "a b c"));
    CHECK(bench.count<Prepare>(b) == (needed == 1 ? 1 : 0));
  }
  SECTION("all have none") {
    bench.acknowledge(a, bench.a_newcomer("a")), bench.acknowledge(b, bench.a_newcomer("b")), bench.acknowledge(c, bench.a_newcomer("c"));
    CHECK(bench.world(a) == "a b c");
  }
  SECTION("a worker that stayed ends before the world begins") {
    bench.acknowledge(b, bench.a_ready("b")), bench.acknowledge(c, bench.a_ready("c"));
    bench.say(b, NotPrepared{bench.generation(), "signal 9 (SIGKILL)", 137, false});
    SECTION("another one of its node may live, and have state") {
      bench.acknowledge(a, bench.a_ready("a"));
      CHECK(bench.world(a) == "a b c");
    }
  }
  SECTION("some workers of a node live, and others are to be started") {
    Join some = bench.a_newcomer("b");
    some.preparedness = Preparedness::some_stay;
    bench.acknowledge(b, some), bench.acknowledge(c, bench.a_ready("c")), bench.acknowledge(a, bench.a_ready("a"));
    CHECK(bench.world(a) == "a b c");
  }
  SECTION("no worker of any node lives, and one node's successors are ready") {
    Join fresh = bench.a_newcomer("a");
    fresh.preparedness = Preparedness::fresh;
    bench.acknowledge(a, fresh), bench.acknowledge(b, bench.a_newcomer("b")), bench.acknowledge(c, bench.a_newcomer("c"));
    CHECK(bench.world(a) == "a b c");
  }
  SECTION("successors that are ready before the world begins are in it") {
    bench.acknowledge(b, bench.a_newcomer("b")), bench.acknowledge(c, bench.a_ready("c"));
    bench.say(b, MoreWorkers{bench.generation(), 2});
    bench.acknowledge(a, bench.a_ready("a"));
    CHECK(bench.world(a) == "a b c");
  }
}

TEST_CASE("a node that alone has the state is in the next world, whoever else is ready", "[round][prepare]") {
  Trains bench{{.nodes_min = 1, .nodes_max = 2, .last_call = 1s}};
  bench.break_stream(bench.a);
  bench.pass(1s);
  Join some = bench.a_newcomer("b");
  some.preparedness = Preparedness::some_stay;
  Join fresh = bench.a_newcomer("c");
  fresh.preparedness = Preparedness::fresh;
  const StreamNumber c = bench.join(fresh);
  bench.acknowledge(bench.b, some);
  CHECK(bench.world(c) == "b c");
}

TEST_CASE("workers that stay on an excluded node train nothing meanwhile", "[round][prepare]") {
  Trains bench;
  bench.say(bench.a, PeerUnreachable{bench.generation(), 0, 2, true, "no answer"});
  bench.pass(10s);
  REQUIRE_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("the job goes on without b"));
  Join fresh = bench.a_newcomer("c");
  fresh.preparedness = Preparedness::fresh;
  const StreamNumber c = bench.join(fresh);
  bench.acknowledge(bench.b, bench.a_ready("b")), bench.acknowledge(bench.a, bench.a_newcomer("a"));
  CHECK(bench.world(bench.a) == "a c");
  CHECK(bench.world(c) == "a c");
}

TEST_CASE("a ready spare takes the place of a member that has no workers", "[round][prepare]") {
  Trains bench{{.nodes_min = 2, .nodes_max = 2, .last_call = 1s}};
  Join ready = bench.a_newcomer("c");
  ready.preparedness = Preparedness::ready;
  const StreamNumber c = bench.join(ready);
  bench.say(bench.b, failure(bench.generation(), true));
  bench.acknowledge(bench.a, bench.a_ready("a")), bench.acknowledge(bench.b, bench.a_newcomer("b"));
  CHECK(bench.world(c) == "a c");
}

TEST_CASE("nodes that were told to prepare together join together, where their starts differ little", "[round][prepare]") {
  Trains bench;
  const StreamNumber c = bench.newcomer("c"), d = bench.newcomer("d");
  bench.pass(60s);
  bench.say(c, MoreWorkers{bench.generation(), 2});
  bench.pass(14s);
  CHECK_FALSE(bench.grows());
  SECTION("the other one is ready in time") {
    bench.say(d, MoreWorkers{bench.generation(), 2});
    bench.pass(growth_gather);
    bench.members_acknowledge();
    CHECK(bench.world(c) == "a b c d");
  }
  SECTION("or not") {
    bench.pass(2s);
    bench.members_acknowledge();
    CHECK(bench.world(c) == "a b c");
  }
}

TEST_CASE("a node that prepares is counted where nodes are too few", "[round][prepare]") {
  Trains bench = both_are_needed();
  const StreamNumber a = bench.a, b = bench.b;
  SECTION("the job is not given up, and an excluded node stays out") {
    const StreamNumber x = bench.newcomer("x");
    for (int i = 0; i < 11; ++i) {  // until it stays out for 256 s
      bench.pass(300s);
      while (bench.count<Prepare>(x) > 0 && bench.last<Waiting>(x)->why.find("excluded") == std::string::npos) {
        bench.say(x, NotPrepared{bench.generation(), "exit code 127", 127, true});
        bench.pass(status_debounce);
      }
    }
    const StreamNumber c = bench.newcomer("c");
    bench.break_stream(b);
    bench.pass(1s);
    bench.acknowledge(a, "a");
    bench.pass(100s);
    CHECK_FALSE(bench.round.verdict());
    CHECK(bench.begun.size() == 1);
    CHECK_THAT(bench.last<Waiting>(a)->why, Contains("1 of 2 nodes; waiting for workers of c to start"));
    bench.say(c, MoreWorkers{bench.generation(), 2});
    CHECK(bench.world(c) == "a c");
  }
  SECTION("one of two that cannot reach each other stays out") {
    const StreamNumber c = bench.newcomer("c");
    bench.say(a, PeerUnreachable{bench.generation(), 0, 2, true, "no answer"});
    bench.pass(10s);
    REQUIRE_THAT(bench.last<Revoke>(a)->why.what, Contains("the job goes on without b"));
    bench.acknowledge(a, "a"), bench.acknowledge(b, "b");
    CHECK(bench.begun.size() == 1);
    bench.say(c, MoreWorkers{bench.generation(), 2});
    CHECK(bench.world(c) == "a c");
  }
}

TEST_CASE("a node whose workers stay has prepared", "[round][prepare]") {
  Trains bench;
  Join join = bench.a_newcomer("c");
  join.preparedness = Preparedness::ready;
  const StreamNumber c = bench.join(join);
  CHECK(bench.count<Prepare>(c) == 0);
  bench.pass(growth_pause);
  bench.members_acknowledge();
  CHECK(bench.world(c) == "a b c");
}

TEST_CASE("a node that is ready comes before a spare that is not, whoever came first", "[round][prepare]") {
  Trains bench{{.nodes_min = 1, .nodes_max = 2, .last_call = 1s}};
  const StreamNumber e = bench.newcomer("e");
  CHECK(bench.count<Prepare>(e) == 0);  // there is no room
  SECTION("one that was away for a moment, with its workers loaded") {
    bench.break_stream(bench.b);
    bench.pass(1s);
    Join back = bench.a_newcomer("b");
    back.last = bench.generation();
    back.preparedness = Preparedness::ready;
    SECTION("before the others began without it") {
      const StreamNumber b = bench.join(back);
      bench.acknowledge(bench.a, "a");
      CHECK(bench.world(b) == "a b");
      bench.pass(1min);
      CHECK(bench.begun.size() == 2);
    }
    SECTION("after that: a spare that starts meanwhile holds no place") {
      bench.acknowledge(bench.a, "a");
      REQUIRE(bench.world(bench.a) == "a");
      CHECK(bench.count<Prepare>(e) == 1);
      const StreamNumber b = bench.join(back);
      bench.pass(2 * growth_pause);
      bench.acknowledge(bench.a, "a");
      CHECK(bench.world(b) == "a b");
    }
  }
  SECTION("one that was excluded; meanwhile the spare is prepared") {
    bench.say(bench.a, PeerUnreachable{bench.generation(), 0, 2, true, "no answer"});
    bench.pass(10s);
    Join excluded = bench.a_newcomer("b");
    excluded.last = bench.generation();
    excluded.preparedness = Preparedness::ready;
    bench.say(bench.b, Acknowledge{bench.generation()});
    bench.say(bench.b, excluded);
    bench.acknowledge(bench.a, "a");
    REQUIRE(bench.world(bench.a) == "a");
    CHECK(bench.count<Prepare>(e) == 1);
    for (int i = 0; i < 120; ++i) {
      bench.pass(1s);
      if (bench.last<Revoke>(bench.a)->generation == bench.generation()) bench.acknowledge(bench.a, "a");
    }
    CHECK(bench.begun.size() <= 3);  // no growth that grows by nobody
  }
}

TEST_CASE("a node that prepares stops the clock of a job that is given up", "[round][prepare]") {
  Trains bench = both_are_needed();
  const StreamNumber c = bench.newcomer("c");
  bench.break_stream(bench.b);
  bench.pass(1s);
  bench.acknowledge(bench.a, "a");
  bench.pass(100s);
  bench.break_stream(c);
  bench.pass(50s);
  CHECK_FALSE(bench.round.verdict());
  bench.pass(15s);
  REQUIRE(bench.round.verdict());
  CHECK(bench.round.verdict()->exit_code == exit_too_few);
}

TEST_CASE("what was known of a Job's workers holds in its next generation", "[round][prepare]") {
  Trains bench{{.nodes_min = 1, .nodes_max = 2, .last_call = 1s}};
  const StreamNumber e = bench.newcomer("e");
  bench.break_stream(bench.b);
  bench.pass(1s);
  bench.acknowledge(bench.a, "a");
  REQUIRE(bench.world(bench.a) == "a");
  CHECK(bench.count<Prepare>(e) == 1);
  bench.pass(1min);
  CHECK(bench.begun.size() == 2);
}

TEST_CASE("a coordinator that was stopped itself blames no node that prepared meanwhile", "[round][prepare]") {
  Trains bench;
  const StreamNumber c = bench.newcomer("c");
  bench.pass(10s);
  bench.now += 400s;
  bench.feed(RoundTick{});
  bench.say(c, MoreWorkers{bench.generation(), 2});
  bench.pass(growth_pause);
  CHECK(bench.grows());
}

TEST_CASE("workers that prepare are numbered in their role", "[round][prepare]") {
  Trains bench;
  Join reader = bench.a_newcomer("c"), another = bench.a_newcomer("d");
  reader.role = another.role = "reader";
  CHECK(bench.last<Prepare>(bench.join(reader))->beside.role == RolePlace{0, 2});
  CHECK(bench.last<Prepare>(bench.join(another))->beside.role == RolePlace{2, 4});
}

TEST_CASE("a node that prepares for longer than its agent lets it is excluded", "[round][prepare]") {
  Trains bench;
  const StreamNumber c = bench.newcomer("c");
  const Timeouts limits;
  const Duration until = limits.session + limits.revocation + limits.stop_grace + limits.heartbeat_limit;
  bench.pass(until - 1s);
  CHECK_THAT(bench.last<Waiting>(c)->why, Contains("start beside the others"));
  bench.pass(1s + status_debounce);
  CHECK_THAT(bench.last<Waiting>(c)->why, Contains("not being ready within 300 s"));
  CHECK_FALSE(bench.grows());
}

TEST_CASE("a fresh coordinator hears that a node is preparing, and waits for its word", "[round][prepare]") {
  Trains old;
  const World first = *old.last<World>(old.a), second = *old.last<World>(old.b);
  RoundBench fresh{old.options, fresh_setup()};
  Join preparing = old.a_newcomer("c");
  preparing.preparedness = Preparedness::starting;
  const StreamNumber c = fresh.join(preparing);
  const StreamNumber a = fresh.resume("a", first);
  fresh.resume("b", second);
  REQUIRE(fresh.last<Resumed>(a));
  fresh.say(a, WorkersAreJob{fresh.generation(), true});
  fresh.pass(10s);
  CHECK_FALSE(fresh.last<Revoke>(a));
  CHECK(fresh.count<Prepare>(c) == 0);
  fresh.say(c, MoreWorkers{first.generation, 2});
  fresh.pass(growth_pause);
  CHECK(fresh.last<Revoke>(a));
}

}  // namespace elrun::test
