// Round: broken streams, silence, and who may use the name of a node.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

TEST_CASE("a broken stream may be resumed by the same incarnation for a short while", "[round]") {
  Pair bench;
  bench.break_stream(bench.b);
  Join again = bench.a_join("b");
  again.last = bench.generation();
  again.resuming = true;
  again.seat = bench.last<World>(bench.b)->seat;
  SECTION("in time: the generation goes on") {
    bench.pass(249ms);
    const auto b = bench.join(again);
    CHECK(bench.last<Resumed>(b)->generation == bench.generation());
    bench.pass(1h);
    CHECK(bench.count<Revoke>(bench.a) == 0);
  }
  SECTION("too late: it is a newcomer whose workers have to end first") {
    bench.pass(250ms);
    CHECK(bench.count<Revoke>(bench.a) == 1);
    bench.acknowledge(bench.a, "a");
    const auto b = bench.join(again);
    CHECK(bench.last<Revoke>(b)->generation == bench.generation());
    CHECK(bench.begun.size() == 1);
    bench.acknowledge(b, "b");
    CHECK(bench.begun.size() == 2);
    CHECK(bench.world(b) == "a b");
  }
  SECTION("in time, but the world never arrived: it is sent again") {
    again.last = {};
    again.resuming = false;
    const auto b = bench.join(again);
    CHECK(bench.world(b) == "a b");
    CHECK(bench.count<Revoke>(bench.a) == 0);
  }
  SECTION("in time, but without workers: the generation is over") {
    again.resuming = false;
    bench.join(again);
    CHECK(bench.last<Revoke>(bench.a)->why.what == "node b gave generation 1@00000000 up");
  }
}

TEST_CASE("a node is lost when nothing was heard of it for the heartbeat limit", "[round]") {
  Pair bench;
  bench.silent.insert(bench.b);
  bench.pass(4s);
  CHECK(bench.count<Revoke>(bench.a) == 0);
  bench.pass(2s);
  CHECK(bench.last<Revoke>(bench.a)->why.what == "node b is lost: nothing was heard of it for 5 s");
  CHECK_FALSE(bench.open.contains(bench.b));
}

TEST_CASE("a coordinator that was itself stopped loses no node for it", "[round]") {
  Pair bench;
  bench.now += 1h;
  bench.feed(RoundTick{});
  CHECK(bench.count<Revoke>(bench.a) == 0);
  SECTION("and judges as ever from then on") {
    bench.pass(1ms);  // the bench says that both live, and catches up
    bench.silent = {bench.b};
    bench.pass(7s);
    CHECK(bench.count<Revoke>(bench.a) == 1);
  }
}

TEST_CASE("a coordinator that was itself stopped gives others the time that they have left, whatever it waits for", "[round]") {
  // Asleep: what nodes say waits in its sockets, and its timers come first.
  const auto sleep = [](RoundBench& bench, Duration length) {
    bench.now += length;
    bench.feed(RoundTick{});
  };
  SECTION("members that end their workers") {
    Pair bench{RoundOptions{.nodes_min = 2, .nodes_max = 2, .max_restarts = 3}};
    bench.say(bench.a, failure(bench.generation()));
    REQUIRE(bench.count<Revoke>(bench.b) == 1);
    bench.pass(10s);
    sleep(bench, 40s);
    CHECK(bench.open == std::set{bench.a, bench.b});
    SECTION("and have") {
      bench.acknowledge(bench.a, "a");
      bench.acknowledge(bench.b, "b");
      CHECK(bench.world(bench.a) == "a b");
    }
    SECTION("and do not in time") {
      bench.pass(26s);
      CHECK(bench.open == std::set{bench.a, bench.b});
      bench.pass(2s);  // 10 s + 27 s, of 37 s
      CHECK(bench.open.empty());
    }
  }
  SECTION("members of another coordinator's generation") {
    Pair old;
    const World held_a = *old.last<World>(old.a), held_b = *old.last<World>(old.b);
    RoundBench bench{two, fresh_setup()};
    const auto a = bench.resume("a", held_a);
    sleep(bench, 15s);
    CHECK(bench.count<Revoke>(a) == 0);
    bench.resume("b", held_b);
    CHECK(bench.last<Resumed>(a));
  }
  SECTION("members of a generation that may still run elsewhere") {
    Pair old;
    const World held_a = *old.last<World>(old.a), held_b = *old.last<World>(old.b);
    RoundSetup setup = fresh_setup();
    setup.generation_floor = held_a.generation.number;
    setup.floor_may_run = true;
    RoundBench bench{two, setup};
    bench.join("new-1");
    bench.join("new-2");
    sleep(bench, 15s);
    CHECK(bench.begun.empty());
    const auto a = bench.resume("a", held_a);
    bench.resume("b", held_b);
    CHECK(bench.last<Resumed>(a));
  }
  SECTION("nodes that may come before the round closes") {
    RoundBench bench{one_to_three};
    const auto a = bench.join("a");
    bench.join("b");
    bench.pass(20s);
    sleep(bench, 20s);
    CHECK(bench.begun.empty());
    bench.join("c");
    CHECK(bench.world(a) == "a b c");
  }
  SECTION("the minimum of nodes") {
    RoundBench bench{two};
    const auto a = bench.join("a");
    sleep(bench, 1h);
    CHECK_FALSE(bench.last<Verdict>(a));
    bench.join("b");
    CHECK(bench.world(a) == "a b");
  }
  SECTION("reports of what failed first") {
    Pair bench{RoundOptions{.nodes_min = 2, .nodes_max = 2, .max_restarts = 0}};
    bench.pass(1min);
    bench.say(bench.a, failure(bench.generation()));
    sleep(bench, 5s);
    CHECK_FALSE(bench.last<Verdict>(bench.a));
    WorkerFailed earlier = failure(bench.generation(), false, 9);
    earlier.ago = 20s;
    bench.say(bench.b, earlier);
    bench.pass(3s);
    REQUIRE(bench.last<Verdict>(bench.a));
    CHECK(bench.last<Verdict>(bench.a)->exit_code == 9);
  }
  SECTION("word whether the program is a Job") {
    Pair bench{RoundOptions{.nodes_min = 1, .nodes_max = 2, .last_call = 1s}};
    WorkerFailed early = failure(bench.generation());
    early.before_session = true;
    bench.say(bench.a, early);
    sleep(bench, 15s);
    CHECK(bench.count<Revoke>(bench.b) == 0);
    bench.say(bench.b, WorkersAreJob{bench.generation()});
    CHECK(bench.count<Revoke>(bench.b) == 1);
    bench.pass(5s);
    CHECK_FALSE(bench.last<Verdict>(bench.b));
  }
}

TEST_CASE("a stop shorter than the heartbeat limit loses no node either", "[round]") {
  for (Duration awake = 0ms; awake < 6s; awake += 100ms) {
    Pair bench;
    bench.pass(awake);
    bench.now += 4900ms;  // asleep: what nodes say waits in its sockets, and its timers come first
    bench.feed(RoundTick{});
    bench.pass(1s);
    INFO(awake / 1ms << " ms");
    CHECK(bench.round.running());
  }
}

TEST_CASE("a node that reconnected while the coordinator was stopped is not lost, however short the stop was", "[round]") {
  for (const Duration asleep : {Duration{330ms}, Duration{500ms}, Duration{2s}}) {
    Pair bench;
    bench.pass(1ms);
    bench.break_stream(bench.b);
    bench.now += asleep;  // longer than a broken stream may be, and its timer comes first
    bench.feed(RoundTick{});
    CHECK(bench.round.running());
    Join again = bench.a_join("b");
    again.last = bench.generation();
    again.resuming = true;
    again.seat = bench.last<World>(bench.b)->seat;
    CHECK(bench.last<Resumed>(bench.join(again))->generation == bench.generation());
    bench.pass(10s);
    CHECK(bench.count<Revoke>(bench.a) == 0);
  }
}

TEST_CASE("a coordinator that is always a little late still loses nodes that do not reconnect", "[round]") {
  Pair bench;
  bench.pass(1ms);
  bench.break_stream(bench.b);
  const Instant begun = bench.now;
  while (bench.round.running() && bench.now < begun + 1min) {
    bench.now += 313ms;  // 250 ms, and 63 ms late
    bench.feed(RoundTick{});
    bench.say(bench.a, NodeAlive{});
  }
  CHECK_FALSE(bench.round.running());
  CHECK(bench.now - begun < 6s);
}

TEST_CASE("a stop is compensated once, however many messages came meanwhile", "[round]") {
  Pair bench;
  bench.pass(10ms);
  bench.now += 1h;
  bench.say(bench.a, NodeAlive{});  // the first of many; the coordinator's timer has yet to fire
  bench.now += 900ms;
  bench.say(bench.a, NodeAlive{});
  bench.silent = {bench.b};
  bench.feed(RoundTick{});
  const Instant awake = bench.now;
  while (bench.round.running() && bench.now < awake + 10s) bench.pass(50ms);
  CHECK(bench.now - awake <= 4200ms);  // 5 s after the first of the words, not after the last
  CHECK(bench.now - awake >= 4050ms);
}

TEST_CASE("a stream in this process is never silent", "[round]") {
  RoundBench bench{{.nodes_min = 1, .nodes_max = 1}};
  const auto a = bench.open_stream(true);
  bench.silent.insert(a);
  bench.say(a, bench.a_join("a"));
  bench.pass(1h);
  CHECK(bench.open.contains(a));
  CHECK(bench.count<Revoke>(a) == 0);
}

TEST_CASE("a new incarnation replaces the old one, which is refused from then on", "[round]") {
  Pair bench;
  StreamNumber b{};
  SECTION("at once when the old one's stream is broken") {
    bench.break_stream(bench.b);
    b = bench.join("b", 2);
    CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("another process has joined under its name"));
  }
  SECTION("when the stream breaks later, after the time to resume it") {
    b = bench.join("b", 2);
    bench.pass(2s);
    bench.break_stream(bench.b);
    bench.pass(300ms);
    CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("did not return within 0.25 s"));
  }
  SECTION("when the old one is silent") {
    bench.silent.insert(bench.b);
    b = bench.join("b", 2);
    bench.pass(6s);
    CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("nothing was heard of it for 5 s"));
  }
  bench.acknowledge(bench.a, "a");
  CHECK(bench.world(b) == "a b");
  const auto old = bench.join("b", 1);
  CHECK_THAT(bench.last<Refused>(old)->failure.what, Contains("each agent needs a name of its own"));
  CHECK(bench.begun.size() == 2);
}

TEST_CASE("a name is free when the node that had it leaves", "[round]") {
  Pair bench;
  const auto b = bench.join("b", 2);
  bench.say(bench.b, Leave{"it was asked to"});
  bench.acknowledge(bench.a, "a");
  CHECK(bench.world(b) == "a b");
}

TEST_CASE("a spare that was lost is refused once another process has joined under its name", "[round]") {
  Pair bench;  // a world that is full
  bench.break_stream(bench.join("c"));
  bench.pass(Timeouts{}.reconnect_grace);
  bench.break_stream(bench.join("c", 2));
  bench.pass(Timeouts{}.reconnect_grace);
  const auto again = bench.join("c");
  CHECK(bench.last<Refused>(again)->failure.code == Code::already_exists);
  CHECK_FALSE(bench.open.contains(again));
}

TEST_CASE("a process that joins under the name of a live node does not replace it, and learns nothing of the generation", "[round]") {
  Pair bench;
  const auto claimant = bench.join("b", 2);
  CHECK_THAT(bench.last<Waiting>(claimant)->why, Contains("This one is admitted when that one is silent or gone"));
  CHECK(bench.count<Refused>(claimant) == 0);
  SECTION("it is refused when the node has proven that it lives") {
    bench.pass(6s);
    CHECK_THAT(bench.last<Refused>(claimant)->failure.what, Contains("another process is node b, and lives"));
    CHECK_FALSE(bench.open.contains(claimant));
  }
  SECTION("what it says meanwhile does not count") {
    bench.say(claimant, JobFinished{bench.generation()});
    bench.say(claimant, Leave{"to end the world"});
    bench.say(claimant, WorkersDone{bench.generation()});
    bench.say(claimant, bench.a_join("b", 2));
    CHECK_FALSE(bench.round.joined(claimant));
  }
  SECTION("only a few wait for one name") {
    for (std::uint64_t i = 3; i < 3 + claimants_max - 1; ++i) CHECK(bench.count<Refused>(bench.join("b", i)) == 0);
    CHECK(bench.count<Refused>(bench.join("b", 99)) == 1);
  }
  SECTION("a node in this process lives as long as this process does") {
    RoundBench own{{.nodes_min = 1, .nodes_max = 1}};
    const auto a = own.join_in_process("a");
    own.silent.insert(a);
    const auto other = own.join("a", 2);
    own.pass(6s);
    CHECK_THAT(own.last<Refused>(other)->failure.what, Contains("another process is node a, and lives"));
    CHECK(own.open.contains(a));
  }
  SECTION("it hears the verdict") {
    bench.say(bench.a, JobFinished{bench.generation()});
    CHECK(bench.last<Verdict>(claimant)->exit_code == 0);
  }
  CHECK(bench.open.contains(bench.b));
  CHECK(bench.count<Revoke>(bench.a) == 0);
  CHECK(bench.count<World>(claimant) == 0);
}

TEST_CASE("a process has a node's name when the node is gone, though that one opened another stream meanwhile", "[round]") {
  Pair bench;
  const bool spare = GENERATE(true, false);
  const std::string name = spare ? "c" : "b";
  const auto first = spare ? bench.join(name) : bench.b;
  const auto claimant = bench.join(name, 2);
  bench.break_stream(first);
  const auto newer = spare ? bench.join(name) : bench.resume(name, *bench.last<World>(bench.b));
  CHECK_FALSE(bench.round.joined(claimant));
  SECTION("it is gone") {
    bench.break_stream(newer);
    bench.pass(Timeouts{}.reconnect_grace);
    CHECK(bench.round.joined(claimant));
    CHECK_THAT(bench.last<Refused>(bench.join(name))->failure.what, Contains("another agent has joined as node"));
  }
  SECTION("it lives") {
    bench.pass(6s);
    CHECK_THAT(bench.last<Refused>(claimant)->failure.what, Contains("and lives"));
  }
}

TEST_CASE("a process has a node's name when the node is gone, though the coordinator was stopped itself meanwhile", "[round]") {
  Pair bench;
  const auto successor = bench.join("b", 2);
  bench.silent.insert(bench.b);
  bench.pass(500ms);
  bench.now += 7s;  // nobody was heard: that says of no node that it lives
  bench.pass(4s);
  CHECK(bench.count<Refused>(successor) == 0);
  CHECK_FALSE(bench.round.joined(successor));
  bench.pass(2s);
  CHECK(bench.count<Refused>(successor) == 0);
  CHECK(bench.round.joined(successor));
}

TEST_CASE("a generation number that cannot exist is refused, and does not stop the next generation", "[round]") {
  Pair bench;
  const auto claims = [&](std::uint64_t last, std::uint64_t heard) {
    Join join = bench.a_join("claimant");
    join.last.number = last;
    join.heard = heard;
    return bench.join(join);
  };
  for (const auto& [last, heard] : {std::pair{generation_number_max, std::uint64_t{0}}, std::pair{std::uint64_t{0}, generation_number_max},
                                    std::pair{generation_jump_max + 2, std::uint64_t{0}}})
    CHECK_THAT(bench.last<Refused>(claims(last, heard))->failure.what,
               Contains("is out of bounds: the newest that this coordinator knows of is 1"));
  // A number that may be is taken up; it leaves room for a long time.
  CHECK(bench.count<Refused>(claims(generation_jump_max + 1, 0)) == 0);
  bench.break_stream(bench.b);
  bench.pass(1s);
  bench.acknowledge(bench.a, "a");
  CHECK(bench.generation().number == generation_jump_max + 2);
  CHECK(bench.generation().number < generation_number_max);
}

TEST_CASE("names with control characters are refused, and escaped in the message", "[round]") {
  RoundBench bench{two};
  const std::string nasty = "b\x1b[2J\n[elrun 12:00:00.000] the job is done";
  const auto refused = [&](const std::function<void(Join&)>& spoil) {
    Join join = bench.a_join("b");
    spoil(join);
    const auto last = bench.last<Refused>(bench.join(join));
    REQUIRE(last);
    return last->failure.what;
  };
  for (const std::string& what : {refused([&](Join& j) { j.who.node = NodeId{nasty}; }), refused([&](Join& j) { j.address = nasty; }),
                                  refused([&](Join& j) { j.topology = nasty; }), refused([&](Join& j) { j.role = nasty; }),
                                  refused([&](Join& j) { j.version = "1.0\n"; })}) {
    CHECK_THAT(what, Contains("has characters that cannot be shown"));
    CHECK(what.find_first_of("\x1b\n") == std::string::npos);
  }
  const auto a = bench.join("a");
  bench.pass(status_debounce);
  CHECK(bench.last<Waiting>(a)->why.find_first_of("\x1b\n") == std::string::npos);
  for (const std::string& line : bench.said) CHECK(line.find_first_of("\x1b\n") == std::string::npos);
}

TEST_CASE("restarts that a node reports are bounded by the restart budget", "[round]") {
  RoundBench bench{{.nodes_min = 1, .nodes_max = 1, .max_restarts = 2}};
  Join join = bench.a_join("a");
  join.last.number = 5;
  join.restarts = {.generations = UINT32_MAX, .used = UINT32_MAX};
  const auto a = bench.join(join);
  bench.pass(options_last_call);
  CHECK(bench.last<World>(a)->restarts.used == 2);
  bench.say(a, failure(bench.generation()));
  bench.acknowledge(a, "a");
  CHECK(bench.last<Verdict>(a)->exit_code == 3);
}

TEST_CASE("messages of an ended process that are read late do not count for its successor", "[round]") {
  RoundBench bench{{.nodes_min = 2, .nodes_max = 2}};
  const auto a = bench.join("a"), dead = bench.open_stream();
  const auto b = bench.join("b", 2);  // it was started after 1 had ended, and is heard first
  REQUIRE(bench.world(a) == "a b");
  SECTION("while the successor is there") {
    bench.say(dead, bench.a_join("b", 1));
    CHECK_FALSE(bench.open.contains(dead));
    CHECK(bench.open.contains(b));
    CHECK(bench.count<Refused>(b) == 0);
    CHECK(bench.count<Revoke>(a) == 0);
    CHECK_THAT(bench.last<Refused>(bench.join("b", 1))->failure.what, Contains("each agent needs a name of its own"));
  }
  SECTION("while the successor is away for a moment") {
    bench.break_stream(b);
    bench.say(dead, bench.a_join("b", 1));
    CHECK_FALSE(bench.open.contains(dead));
    CHECK(bench.count<Refused>(bench.resume("b", *bench.last<World>(b), 2)) == 0);
    CHECK(bench.count<Revoke>(a) == 0);
  }
  SECTION("while the successor counts as lost: it may return") {
    bench.break_stream(b);
    bench.pass(1s);
    bench.acknowledge(a, "a");
    bench.say(dead, bench.a_join("b", 1));
    CHECK_FALSE(bench.open.contains(dead));
    const auto back = bench.join("b", 2);
    CHECK(bench.count<Refused>(back) == 0);
    CHECK(bench.world(back) == "a b");
  }
}

TEST_CASE("messages on a stream that a node gave up do not replace its newer stream", "[round]") {
  RoundBench bench{{.nodes_min = 2, .nodes_max = 2}};
  const auto a = bench.join("a"), given_up = bench.open_stream();
  const auto b = bench.join("b");
  REQUIRE(bench.world(a) == "a b");
  bench.say(given_up, bench.a_join("b"));
  CHECK_FALSE(bench.open.contains(given_up));
  CHECK(bench.count<Refused>(given_up) == 0);  // it would end the process
  CHECK(bench.open.contains(b));
  CHECK(bench.count<Revoke>(a) == 0);
}

TEST_CASE("a member that was lost before its successor came is refused when it returns", "[round]") {
  Pair bench;
  bench.silent.insert(bench.b);
  bench.pass(6s);
  REQUIRE_FALSE(bench.open.contains(bench.b));
  const auto b = bench.join("b", 2);
  bench.acknowledge(bench.a, "a");
  CHECK(bench.world(b) == "a b");
  const auto old = bench.join("b", 1);
  CHECK_THAT(bench.last<Refused>(old)->failure.what, Contains("each agent needs a name of its own"));
  CHECK(bench.begun.size() == 2);
}

TEST_CASE("a stream that speaks for a second node is refused, whatever is known of that one", "[round]") {
  RoundBench bench{one_to_three};
  const auto b = bench.join("b");
  bench.join("a");
  const auto a = bench.join("a");  // on another stream: what comes for it on an earlier one was sent before
  bench.say(b, bench.a_join("a"));
  REQUIRE(bench.last<Refused>(b));
  CHECK(bench.last<Refused>(b)->failure.what == "one stream spoke for two nodes, b and a");
  CHECK_FALSE(bench.open.contains(b));
  CHECK(bench.open.contains(a));
  bench.pass(40s);
  CHECK(bench.world(a) == "a");
}

}  // namespace elrun::test
