// Round: a coordinator is lost, and another one takes over.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

TEST_CASE("nodes without a generation wait while the recorded one may still run", "[round]") {
  Pair old;
  const auto held = *old.last<World>(old.a);
  const auto held_b = *old.last<World>(old.b);
  RoundSetup setup = bench_setup();
  setup.lineage = {{0x3333, 0x4444}};
  setup.generation_floor = held.generation.number;
  const auto fresh_pair = [&](RoundBench& bench) { return std::pair{bench.join("new-1"), bench.join("new-2")}; };
  SECTION("and it goes on when its members come") {
    setup.floor_may_run = true;
    RoundBench bench{old.options, setup};
    const auto spares = fresh_pair(bench);  // as many as a world takes, and first
    bench.pass(9s);
    CHECK(bench.begun.empty());
    CHECK_THAT(bench.last<Waiting>(spares.first)->why, Contains("a generation that another coordinator began may still run"));
    const auto a = bench.resume("a", held), b = bench.resume("b", held_b);
    CHECK(bench.last<Resumed>(a));
    CHECK(bench.last<Resumed>(b));
    CHECK(bench.count<Revoke>(a) + bench.count<World>(spares.first) + bench.count<World>(spares.second) == 0);
  }
  SECTION("not longer than its members have time to come") {
    setup.floor_may_run = true;
    RoundBench bench{old.options, setup};
    const auto spares = fresh_pair(bench);
    bench.pass(10s);
    CHECK(bench.world(spares.first) == "new-1 new-2");
    CHECK(bench.generation().number > held.generation.number);
  }
  SECTION("not once a member has said that it is over") {
    setup.floor_may_run = true;
    RoundBench bench{old.options, setup};
    const auto newcomer = bench.join("new-1");
    Join ended = bench.a_join("a");
    ended.last = held.generation;
    const auto a = bench.join(ended);
    bench.pass(1s);
    CHECK_FALSE(bench.world(a).empty());
    CHECK_FALSE(bench.world(newcomer).empty());
  }
  SECTION("not where the number is all that is known") {
    RoundBench bench{old.options, setup};
    CHECK(bench.world(fresh_pair(bench).first) == "new-1 new-2");
  }
}

TEST_CASE("a fresh coordinator waits for members until 10 s after the last one arrived", "[round]") {
  RoundBench old{one_to_three};
  const StreamNumber first = old.join("a"), second = old.join("b"), third = old.join("c");
  const World held_a = *old.last<World>(first), held_b = *old.last<World>(second), held_c = *old.last<World>(third);
  RoundBench bench{one_to_three, fresh_setup()};
  const auto a = bench.resume("a", held_a);
  bench.pass(8s);
  const auto b = bench.resume("b", held_b);
  bench.pass(8s);
  CHECK(bench.count<Revoke>(a) + bench.count<Revoke>(b) == 0);
  SECTION("the last one comes in time") {
    const auto c = bench.resume("c", held_c);
    for (const StreamNumber stream : {a, b, c}) CHECK(bench.last<Resumed>(stream));
  }
  SECTION("the last one does not come") {
    bench.pass(2s);
    CHECK(bench.last<Revoke>(a));
    CHECK(bench.last<Revoke>(b));
  }
  SECTION("who comes again is no arrival") {
    bench.break_stream(a);
    bench.resume("a", held_a);
    bench.pass(2s);
    CHECK(bench.last<Revoke>(b));
  }
}

TEST_CASE("a fresh coordinator adopts a generation when all of its members have come", "[round]") {
  Pair old{one_to_three};
  const World held_a = *old.last<World>(old.a), held_b = *old.last<World>(old.b);
  RoundBench bench{one_to_three, fresh_setup()};
  const auto b = bench.resume("b", held_b);
  bench.pass(1s);
  CHECK(bench.count<Resumed>(b) == 0);
  CHECK_THAT(bench.last<Waiting>(b)->why, Contains("1 of 2 nodes are here"));
  SECTION("all come: nobody notices") {
    const auto a = bench.resume("a", held_a);
    for (const auto stream : {a, b}) {
      REQUIRE(bench.last<Resumed>(stream));
      CHECK(bench.last<Resumed>(stream)->generation == held_a.generation);
      CHECK(bench.last<Resumed>(stream)->fresh);
      CHECK(bench.count<Revoke>(stream) == 0);
    }
    CHECK(bench.begun == std::vector{held_a.generation});
    CHECK(roster_hash(bench.members) == held_a.seat.roster);
    SECTION("the next one is above it, and of this coordinator") {
      bench.break_stream(a);
      bench.pass(1s);
      bench.acknowledge(b, "b");
      CHECK(bench.generation() == Generation{2, fresh_setup().lineage});
      CHECK(bench.world(b) == "b");
    }
    SECTION("it is this coordinator's as any other: done is done") {
      bench.say(a, WorkersDone{held_a.generation});
      bench.say(b, WorkersDone{held_a.generation});
      CHECK(bench.last<Verdict>(a)->exit_code == 0);
    }
    SECTION("its key is not known here: whoever has lost its world has lost the generation") {
      bench.break_stream(a);
      bench.join("a");
      CHECK(bench.last<Revoke>(b));
    }
  }
  SECTION("one does not: the others end it, and come first in the next") {
    const auto c = bench.join("c");
    bench.pass(8s);
    CHECK(bench.begun.empty());
    bench.pass(1s);
    CHECK(bench.last<Revoke>(b)->why.what ==
          "its coordinator was lost, and 1 of its 2 nodes did not join the new coordinator: for 10 s none of the others came");
    bench.acknowledge(b, "b");
    // acknowledged as `bench.generation()`, which this coordinator did not begin: say it as the agent would
    Join again = bench.a_join("b");
    again.last = held_b.generation;
    bench.say(b, again);
    CHECK(bench.world(b) == "b c");
    CHECK(bench.world(c) == "b c");
    CHECK(bench.generation().number == 2);
    CHECK(bench.last<World>(b)->restarts.generations == 1);
    SECTION("and a member that comes too late is a newcomer that ends its workers first") {
      const auto a = bench.resume("a", held_a);
      CHECK(bench.last<Revoke>(a)->generation == held_a.generation);
      CHECK(bench.count<World>(a) == 0);
    }
  }
  SECTION("one cannot go on without the others: they are not waited for longer than they take to come back") {
    Join broken = bench.a_join("b");
    broken.last = held_b.generation;
    broken.resuming = broken.broken = true;
    broken.seat = held_b.seat;
    bench.say(b, broken);
    const auto c = bench.join("c");
    bench.pass(2s);
    SECTION("and they come") {
      const auto a = bench.resume("a", held_a);
      CHECK(bench.last<Resumed>(a));
      CHECK(bench.last<Resumed>(b));
    }
    SECTION("and they do not") {
      CHECK(bench.count<Revoke>(b) == 0);
      CHECK_THAT(bench.last<Waiting>(b)->why, Contains("it ends unless all come in 1 s") || Contains("it ends unless all come in 3 s"));
      bench.say(b, broken);  // as often as it likes
      bench.pass(1s);
      CHECK(
          bench.last<Revoke>(b)->why.what ==
          "its coordinator was lost, and 1 of its 2 nodes did not join the new coordinator: a worker of node b has failed or lost a peer");
      Join again = bench.a_join("b");
      again.last = held_b.generation;
      bench.say(b, again);
      CHECK(bench.world(b) == "b c");
      CHECK(bench.world(c) == "b c");
    }
  }
  SECTION("one has ended it already: no use in waiting") {
    Join ended = bench.a_join("a");
    ended.last = held_a.generation;
    bench.join(ended);
    CHECK_THAT(bench.last<Revoke>(b)->why.what, Contains("node a has ended it"));
  }
  SECTION("one is ending it") {
    Join ending = bench.a_join("a");
    ending.last = held_a.generation;
    ending.resuming = true;
    bench.join(ending);
    CHECK_THAT(bench.last<Revoke>(b)->why.what, Contains("node a is ending it"));
  }
  SECTION("one that came is lost again before the others came") {
    bench.break_stream(b);
    bench.pass(1s);
    const auto a = bench.resume("a", held_a);
    bench.pass(1s);
    CHECK(bench.count<Resumed>(a) == 0);
    bench.resume("b", held_b);
    CHECK(bench.count<Resumed>(a) == 1);
  }
  SECTION("somebody takes the seat of another: only it is sent away") {
    const auto thief = bench.resume("thief", held_b);
    CHECK(bench.last<Revoke>(thief));
    const auto a = bench.resume("a", held_a);
    CHECK(bench.last<Resumed>(a));
  }
  SECTION("they do not agree on who they are") {
    World other = held_a;
    other.address = "elsewhere";
    Join join = bench.a_join("a");
    join.last = held_a.generation;
    join.resuming = true;
    join.seat = held_a.seat;
    join.workers = 3;
    const auto a = bench.join(join);
    CHECK(bench.count<Resumed>(a) == 0);
    CHECK_THAT(bench.last<Revoke>(a)->why.what, Contains("do not agree"));
  }
  SECTION("a newer generation is heard of: that one is waited for") {
    World newer = held_a;
    newer.generation = {7, {{5, 6}}};
    newer.seat = {0, 0, 1, 2, roster_hash({{NodeId{"a"}, "a.local", 2, 0, 4000}})};
    const auto a = bench.resume("a", newer);
    CHECK(bench.last<Resumed>(a)->generation == newer.generation);
    CHECK(bench.last<Revoke>(b)->generation == held_b.generation);
  }
}

namespace {

/// A world of "a", "b" and "c" that "b" coordinated, as its members know it.
struct CoordinatedByMember {
  World a, b, c;
  CoordinatedByMember() {
    RoundBench bench{one_to_three};
    const auto first = bench.join("a"), second = bench.join_in_process("b"), third = bench.join("c");
    a = *bench.last<World>(first), b = *bench.last<World>(second), c = *bench.last<World>(third);
  }
};

Join broken(Join join) {
  join.broken = true;
  return join;
}

}  // namespace

TEST_CASE("members learn in whose process they are coordinated", "[round]") {
  const CoordinatedByMember old;
  for (const World& world : {old.a, old.b, old.c}) CHECK(world.coordinated_by == 1);
  SECTION("who coordinates and is no member is nobody of them") {
    RoundBench bench{{.nodes_min = 2, .nodes_max = 3}};
    Join observer = bench.a_join("watch");
    observer.workers = 0;
    bench.say(bench.open_stream(true), observer);
    const auto a = bench.join("a");
    bench.join("b");
    REQUIRE(bench.world(a) == "a b");
    CHECK_FALSE(bench.last<World>(a)->coordinated_by);
  }
  SECTION("it is another one when the generation goes on elsewhere") {
    RoundBench bench{one_to_three, fresh_setup()};
    const auto c = bench.open_stream(true);
    bench.say(c, bench.a_resuming_join("c", old.c));
    const auto b = bench.resume("b", old.b);
    const auto a = bench.resume("a", old.a);
    for (const StreamNumber stream : {a, b, c}) {
      REQUIRE(bench.last<Resumed>(stream));
      CHECK(bench.last<Resumed>(stream)->coordinated_by == 2);
    }
    bench.break_stream(a);
    CHECK(bench.last<Resumed>(bench.resume("a", old.a))->coordinated_by == 2);
  }
  SECTION("or nobody, where no member coordinates") {
    RoundBench bench{one_to_three, fresh_setup()};
    const auto a = bench.resume("a", old.a);
    bench.resume("b", old.b);
    bench.resume("c", old.c);
    REQUIRE(bench.last<Resumed>(a));
    CHECK_FALSE(bench.last<Resumed>(a)->coordinated_by);
  }
}

TEST_CASE("the node that coordinated a generation is not waited for once all other members are back", "[round]") {
  const CoordinatedByMember old;
  RoundBench bench{one_to_three, fresh_setup()};
  const auto a = bench.resume("a", old.a);
  SECTION("it went with its coordinator: the others go on without it, at once") {
    const auto c = bench.resume("c", old.c);
    CHECK(bench.last<Revoke>(a)->why.what ==
          "its coordinator was lost, and 1 of its 3 nodes did not join the new coordinator: the missing one coordinated it");
    for (const auto& [stream, node] : {std::pair{a, "a"}, std::pair{c, "c"}}) {
      Join again = bench.a_join(node);
      again.last = old.a.generation;
      bench.say(stream, again);
    }
    CHECK(bench.world(a) == "a c");
    CHECK(bench.generation() == Generation{2, fresh_setup().lineage});
    SECTION("and if it was only cut off, it is a newcomer that ends its workers first") {
      const auto b = bench.resume("b", old.b);
      CHECK(bench.last<Revoke>(b)->generation == old.b.generation);
      CHECK(bench.count<World>(b) == 0);
    }
  }
  SECTION("nor for the end of the job, which whoever knows of it tells after its Join and which ends no generation before that") {
    World over = old.c;
    over.coordinated_by.reset();
    const auto c = bench.resume("c", over);
    bench.say(c, JobFinished{over.generation});
    for (const StreamNumber stream : {a, c}) {
      CHECK(bench.count<Revoke>(stream) == 0);
      REQUIRE(bench.last<Verdict>(stream));
      CHECK(bench.last<Verdict>(stream)->exit_code == 0);
    }
  }
  SECTION("others are only slow, and have their time") {
    bench.pass(9s);
    CHECK(bench.count<Revoke>(a) == 0);
    const auto b = bench.resume("b", old.b);  // it was an agent of its machine that coordinated, after all
    bench.pass(9s);
    CHECK(bench.count<Revoke>(a) + bench.count<Revoke>(b) == 0);
    const auto c = bench.resume("c", old.c);
    for (const StreamNumber stream : {a, b, c}) CHECK(bench.last<Resumed>(stream));
  }
  SECTION("one of them was told of another coordinator: nobody knows who is missing for good") {
    World other = old.c;
    SECTION("that is here") { other.coordinated_by = 0; }
    SECTION("that is no member") { other.coordinated_by.reset(); }
    SECTION("out of bounds") { other.coordinated_by = 3; }
    const auto c = bench.resume("c", other);
    bench.pass(9s);
    CHECK(bench.count<Revoke>(a) + bench.count<Revoke>(c) == 0);
    const auto b = bench.resume("b", old.b);
    for (const StreamNumber stream : {a, b, c}) CHECK(bench.last<Resumed>(stream));
  }
}

TEST_CASE("an elected coordinator may step down and come like the others, so it is waited for while the generation can go on", "[round]") {
  const CoordinatedByMember old;
  RoundSetup setup = fresh_setup();
  setup.elected = true;
  RoundBench bench{one_to_three, setup};
  const auto a = bench.resume("a", old.a);
  SECTION("it comes") {
    const auto c = bench.resume("c", old.c);
    bench.pass(9s);
    CHECK(bench.count<Revoke>(a) + bench.count<Revoke>(c) == 0);
    const auto b = bench.resume("b", old.b);
    for (const StreamNumber stream : {a, b, c}) CHECK(bench.last<Resumed>(stream));
  }
  SECTION("a worker has lost a peer: it cannot go on") {
    const auto c = bench.join(broken(bench.a_resuming_join("c", old.c)));
    CHECK(bench.last<Revoke>(a));
    CHECK(bench.last<Revoke>(c));
  }
  SECTION("it fell silent to all others, as any node that is lost") {
    Join silent_c = bench.a_resuming_join("c", old.c), silent_a = bench.a_resuming_join("a", old.a);
    silent_c.coordinator_fell_silent = silent_a.coordinator_fell_silent = true;
    const auto c = bench.join(silent_c);
    CHECK(bench.count<Revoke>(a) == 0);  // to one it did not: that one knows that it lives
    bench.say(a, silent_a);
    CHECK(bench.last<Revoke>(a));
    CHECK(bench.last<Revoke>(c));
  }
  SECTION("that is heard of later") {
    const auto c = bench.resume("c", old.c);
    bench.pass(1s);
    CHECK(bench.count<Revoke>(a) == 0);
    bench.say(c, broken(bench.a_resuming_join("c", old.c)));
    CHECK(bench.last<Revoke>(a));
  }
}

TEST_CASE("a spare that reaches a fresh coordinator first does not end the running generation", "[round]") {
  Pair old;
  const auto spare = old.join("c");
  old.pass(1s);
  REQUIRE(old.last<Waiting>(spare)->running == old.generation());
  RoundBench bench{{.nodes_min = 1, .nodes_max = 1}, fresh_setup()};
  Join join = bench.a_join("c");
  join.heard = old.generation().number;
  const auto c = bench.join(join);
  World held = *old.last<World>(old.a);
  held.seat = {0, 0, 1, 2, roster_hash({{NodeId{"a"}, "a.local", 2, 0, 4000}})};
  bench.pass(3s);
  CHECK(bench.begun.empty());
  SECTION("they come") {
    CHECK(bench.last<Resumed>(bench.resume("a", held)));
    bench.pass(1min);
    CHECK(bench.count<World>(c) == 0);
  }
  SECTION("nobody comes: the spare is all there is") {
    bench.pass(7s);
    CHECK(bench.world(c) == "c");
    CHECK(bench.generation().number == 2);
  }
}

TEST_CASE("one node that was in the last generation is enough to know that the job is done", "[round]") {
  Pair bench;
  SECTION("not of a spare, for the generation that runs") { bench.say(bench.join("c"), JobFinished{bench.generation()}); }
  SECTION("not of a spare, for a generation that it was in nowhere") {
    bench.say(bench.join("c"), JobFinished{{bench.generation().number + 1, {}}});
  }
  SECTION("not of a later generation while all members of this one are here") {
    Join join = bench.a_join("c");
    join.last = {bench.generation().number + 1, {}};
    bench.say(bench.join(join), JobFinished{join.last});
  }
  CHECK_FALSE(bench.round.verdict());
  CHECK(bench.count<Revoke>(bench.a) == 0);
}

TEST_CASE("a fresh coordinator takes over that the job is done", "[round]") {
  Pair old;
  const World held = *old.last<World>(old.a);
  RoundBench bench{two, fresh_setup()};
  SECTION("said by a node that waits for the others") {
    const auto a = bench.resume("a", held);
    bench.say(a, JobFinished{held.generation});
    CHECK(bench.last<Verdict>(a)->exit_code == 0);
  }
  SECTION("said by a node that has none of its workers left") {
    Join join = bench.a_join("a");
    join.last = held.generation;
    const auto a = bench.join(join);
    bench.say(a, JobFinished{held.generation});
    CHECK(bench.last<Verdict>(a)->exit_code == 0);
  }
  SECTION("but not of a generation before the newest") {
    bench.join("c"), bench.join("d");
    REQUIRE(bench.begun.size() == 1);
    const auto a = bench.resume("a", held);
    bench.say(a, JobFinished{{0, held.generation.lineage}});
    CHECK_FALSE(bench.round.verdict());
  }
}

TEST_CASE("a coordinator that has begun a generation of its own adopts none", "[round]") {
  Pair old;
  const World held = *old.last<World>(old.a);
  RoundBench bench{two, fresh_setup()};
  bench.join("c"), bench.join("d");
  REQUIRE(bench.begun.size() == 1);
  const auto a = bench.resume("a", held);
  CHECK(bench.last<Revoke>(a)->generation == held.generation);
  bench.pass(1min);
  CHECK(bench.count<Resumed>(a) == 0);
  CHECK(bench.begun.size() == 1);
}

TEST_CASE("a fresh coordinator keeps counting restarts", "[round]") {
  RoundOptions options = one_to_three;
  options.max_restarts = 1;
  Pair old{options};
  old.say(old.a, failure(old.generation()));
  old.acknowledge(old.a, "a"), old.acknowledge(old.b, "b");
  REQUIRE(old.world(old.a) == "a b");
  RoundBench bench{options, fresh_setup()};
  const auto a = bench.resume("a", *old.last<World>(old.a));
  bench.resume("b", *old.last<World>(old.b));
  REQUIRE(bench.last<Resumed>(a));
  bench.say(a, failure(bench.generation()));
  bench.pass(root_cause_window);
  REQUIRE(bench.last<Verdict>(a));
  CHECK(bench.last<Verdict>(a)->exit_code == 3);
}

TEST_CASE("a coordinator that loses all streams at once takes it for its own failure, and waits for all members", "[round]") {
  Pair bench;
  const World held_a = *bench.last<World>(bench.a), held_b = *bench.last<World>(bench.b);
  bench.break_stream(bench.a), bench.break_stream(bench.b);
  bench.pass(3s);
  const auto a = bench.resume("a", held_a);
  CHECK(bench.last<Resumed>(a));
  CHECK_FALSE(bench.last<Resumed>(a)->fresh);  // its store has all that was put there
  SECTION("all return") {
    const auto b = bench.resume("b", held_b);
    CHECK(bench.last<Resumed>(b));
    bench.pass(1min);
    CHECK(bench.count<Revoke>(a) + bench.count<Revoke>(b) == 0);
  }
  SECTION("one does not") {
    bench.pass(7s);
    CHECK(bench.last<Revoke>(a)->why.what == "node b is lost: its stream broke and it did not return within 10 s");
  }
}

TEST_CASE("a node that comes while all members are gone is told what is waited for, and how long", "[round]") {
  Pair bench;
  bench.break_stream(bench.a), bench.break_stream(bench.b);
  bench.pass(1s);
  const auto c = bench.join("c");
  bench.join("d");
  bench.pass(1s);
  CHECK_THAT(bench.last<Waiting>(c)->why, Contains("lost all of its 2 nodes at once; they may come back; they count as lost in"));
  bench.pass(8s);
  CHECK(bench.world(c) == "c d");
}

TEST_CASE("the log reports the first step of each generation, then one a minute", "[round]") {
  Pair bench{two};
  const auto told = [&] {
    return std::count_if(bench.said.begin(), bench.said.end(),
                         [](const std::string& text) { return text.find(" is decided") != std::string::npos; });
  };
  for (std::uint64_t step = 1; step <= 10; ++step) bench.say(bench.a, Progress{bench.generation(), step});
  CHECK(told() == 1);
  CHECK_THAT(bench.said.back(), Contains("step 1 is decided"));
  bench.pass(1min);
  bench.say(bench.b, Progress{bench.generation(), 11});
  CHECK(told() == 2);
  bench.say(bench.b, Leave{"away"});
  bench.acknowledge(bench.a, "a");
  bench.join("b", 2);
  REQUIRE(bench.world(bench.a) == "a b");
  bench.say(bench.a, Progress{bench.generation(), 3});  // done again, from a checkpoint
  CHECK(told() == 3);
}

TEST_CASE("nobody can resume a generation that was never begun", "[round]") {
  RoundBench bench{one_to_three};
  World never;
  const bool whole = GENERATE(true, false);
  const std::vector<Member> alone{{NodeId{"a"}, "a.local", 2, 0, 4000}};
  never.seat = {.group_rank = 0, .base_rank = 0, .nodes = whole ? 1u : 2u, .world_size = whole ? 2u : 4u, .roster = roster_hash(alone)};
  for (int again = 0; again < 3; ++again) {
    const auto a = bench.resume("a", never);
    CHECK(bench.count<Revoke>(a) == 1);
    bench.pass(12s);
    CHECK(bench.begun.empty());
    bench.break_stream(a);
    bench.pass(1s);
  }
}

}  // namespace elrun::test
