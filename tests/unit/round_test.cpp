#include "rendezvous/round/round.hpp"

#include <fmt/format.h>

#include "rendezvous/round/assign.hpp"
#include "tests/support/round_bench.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

constexpr RoundOptions two{.nodes_min = 2, .nodes_max = 2};
constexpr Duration options_last_call = RoundOptions{}.last_call;
constexpr RoundOptions one_to_three{.nodes_min = 1, .nodes_max = 3};

WorkerFailed failure(const Generation& generation, bool is_job = false, std::int32_t code = 3) {
  return {generation, 1, code, "exit code 3", is_job, Duration{0}, {}};
}

/// A world of "a" and "b" that runs, for rules about what may happen to it.
struct Pair : RoundBench {
  StreamNumber a, b;
  explicit Pair(RoundOptions round_options = two, RoundSetup setup = bench_setup())
      : RoundBench{round_options, std::move(setup)}, a{join("a")}, b{join("b")} {
    pass(options.last_call);
    REQUIRE(world(a) == "a b");
    REQUIRE(world(b) == "a b");
  }
};

}  // namespace

// --- forming ------------------------------------------------------------------------------------------------------

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

TEST_CASE("with the minimum a round waits for last call, and no longer", "[round]") {
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

TEST_CASE("more nodes than the maximum wait as spares and take the place of the dead", "[round]") {
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

TEST_CASE("a round that nobody completes ends with the join deadline and says who is missing", "[round]") {
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

TEST_CASE("who waits is told for what, and until when", "[round]") {
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

TEST_CASE("words do not cost more than the work: a crowd is told once in a while", "[round]") {
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

TEST_CASE("nodes that go on coming do not keep for ever from the others what is waited for", "[round]") {
  RoundBench bench{{.nodes_min = 1001, .nodes_max = 1001}};
  const StreamNumber first = bench.join("first");
  for (int i = 0; i < 220; ++i) {
    bench.pass(50ms);
    bench.join(fmt::format("n{}", i));
    if (i == 190) CHECK(bench.count<Waiting>(first) == 0);
  }
  CHECK(bench.count<Waiting>(first) > 0);
}

TEST_CASE("where every node says which one it is, the absent have names", "[round]") {
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

TEST_CASE("a node without workers counts as a node, but has no place in a world; it hears the verdict", "[round]") {
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

TEST_CASE("of two that claim one place the one that came later is taken first", "[round]") {
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

TEST_CASE("what does not fit is refused, with all contradictions and both values", "[round]") {
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

TEST_CASE("while nothing was begun, the first of the nodes that are there sets options and run", "[round]") {
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

TEST_CASE("a coordinator that knows its job takes run id and number of nodes from nobody", "[round]") {
  RoundSetup setup = bench_setup();
  setup.run = RunId{"run"};
  setup.nodes_min = setup.nodes_max = 2;
  RoundBench bench{two, setup};
  Join stranger = bench.a_join("stranger");
  stranger.run = RunId{"other"};
  stranger.options = {.nodes_min = 1, .nodes_max = 1};
  const auto first = bench.join(stranger);
  REQUIRE(bench.last<Refused>(first));
  CHECK_THAT(bench.last<Refused>(first)->failure.what,
             Contains("this node has other, the job has run") && Contains("--nnodes MIN: this node has 1, the job has 2"));
  CHECK(bench.begun.empty());
  const auto a = bench.join("a");
  bench.join("b");
  CHECK(bench.world(a) == "a b");
}

TEST_CASE("numbers of generations are above every number that was heard of", "[round]") {
  RoundSetup setup = bench_setup();
  setup.generation_floor = 5;
  RoundBench bench{two, setup};
  Join a = bench.a_join("a");
  a.last = {41, {{9, 9}}};
  bench.join(a);
  bench.join("b");
  CHECK(bench.generation().number == 42);
}

// --- ranks --------------------------------------------------------------------------------------------------------

TEST_CASE("names are compared as people do", "[round]") {
  CHECK(natural_less("node2", "node10"));
  CHECK_FALSE(natural_less("node10", "node2"));
  CHECK(natural_less("a", "b"));
  CHECK(natural_less("node", "node1"));
  CHECK(natural_less("n1-2", "n1-10"));
  CHECK(natural_less("n01", "n1") != natural_less("n1", "n01"));
  CHECK_FALSE(natural_less("x", "x"));
}

TEST_CASE("the first world is ordered by hint, then by name; later, survivors come first as they were", "[round]") {
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

TEST_CASE("a fixed world whose nodes all have hints is as given, always", "[round]") {
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

// --- losses -------------------------------------------------------------------------------------------------------

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

TEST_CASE("silence is judged by heartbeats", "[round]") {
  Pair bench;
  bench.silent.insert(bench.b);
  bench.pass(4s);
  CHECK(bench.count<Revoke>(bench.a) == 0);
  bench.pass(2s);
  CHECK(bench.last<Revoke>(bench.a)->why.what == "node b is lost: nothing was heard of it for 5 s");
  CHECK_FALSE(bench.open.contains(bench.b));
}

TEST_CASE("a coordinator that was itself asleep blames nobody", "[round]") {
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

TEST_CASE("a sleep that is shorter than the heartbeat limit blames nobody either", "[round]") {
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

TEST_CASE("who came back while the coordinator slept is not lost, however short the sleep was", "[round]") {
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

TEST_CASE("a coordinator that is always a little late still notices who does not come back", "[round]") {
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

TEST_CASE("what came during one sleep is forgiven once, however many words it is", "[round]") {
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

TEST_CASE("a name is free when the one that had it leaves", "[round]") {
  Pair bench;
  const auto b = bench.join("b", 2);
  bench.say(bench.b, Leave{"it was asked to"});
  bench.acknowledge(bench.a, "a");
  CHECK(bench.world(b) == "a b");
}

TEST_CASE("who joins under the name of a node that lives does not replace it, and hears nothing of the generation", "[round]") {
  Pair bench;
  const auto stranger = bench.join("b", 2);
  CHECK_THAT(bench.last<Waiting>(stranger)->why, Contains("this one is let in once that is silent or gone"));
  CHECK(bench.count<Refused>(stranger) == 0);
  SECTION("it is refused when the node has proven that it lives") {
    bench.pass(6s);
    CHECK_THAT(bench.last<Refused>(stranger)->failure.what, Contains("another process is node b, and lives"));
    CHECK_FALSE(bench.open.contains(stranger));
  }
  SECTION("what it says meanwhile does not count") {
    bench.say(stranger, JobFinished{bench.generation()});
    bench.say(stranger, Leave{"to end the world"});
    bench.say(stranger, WorkersDone{bench.generation()});
    bench.say(stranger, bench.a_join("b", 2));
    CHECK_FALSE(bench.round.joined(stranger));
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
    CHECK(bench.last<Verdict>(stranger)->exit_code == 0);
  }
  CHECK(bench.open.contains(bench.b));
  CHECK(bench.count<Revoke>(bench.a) == 0);
  CHECK(bench.count<World>(stranger) == 0);
}

TEST_CASE("a generation of which nobody can have been told is refused, and does not stop the next one", "[round]") {
  Pair bench;
  const auto claims = [&](std::uint64_t last, std::uint64_t heard) {
    Join join = bench.a_join("stranger");
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

TEST_CASE("names that cannot be shown are refused, and shown as what they are", "[round]") {
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

TEST_CASE("what a node says of restarts before does not use up more than the job has", "[round]") {
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

TEST_CASE("what a process said before it ended is not for its successor, when it is read later", "[round]") {
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

TEST_CASE("what a node said on a stream that it gave up does not take it from the newer one", "[round]") {
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

TEST_CASE("a world that falls below the minimum waits for the join deadline, then ends with who is gone", "[round]") {
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

TEST_CASE("who waits is told who was refused, and why", "[round]") {
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

TEST_CASE("two nodes of one rank are told once, where the number of nodes is fixed", "[round]") {
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

// --- failures of workers ------------------------------------------------------------------------------------------

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

TEST_CASE("a job that fails waits for its workers to end, but not for long", "[round]") {
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

TEST_CASE("the root cause is what failed first, not what was heard of first", "[round]") {
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

TEST_CASE("a program that is no Job has as many restarts as were given", "[round]") {
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

TEST_CASE("workers that fail alike soon after their start are started again after a pause, which costs no restart", "[round]") {
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

TEST_CASE("a Job's loss costs a restart only if no step was decided since the one before", "[round]") {
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

TEST_CASE("losses of nodes cost no restart", "[round]") {
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

TEST_CASE("what is said for another generation counts for nothing", "[round]") {
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

// --- ends ---------------------------------------------------------------------------------------------------------

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

TEST_CASE("a job that its members decided to be over is a success, whatever dies", "[round]") {
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

TEST_CASE("the host may go when every node has the verdict, or the linger is over", "[round]") {
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

TEST_CASE("of a node that confirms the verdict the end of its stream alone says nothing", "[round]") {
  RoundBench bench{two};
  const auto host = bench.join_in_process("a");
  Join confirming = bench.a_join("b");
  confirming.confirms_verdict = true;
  const auto b = bench.join(confirming);
  bench.say(b, VerdictHeard{});  // there is none yet
  CHECK(bench.round.running());
  bench.say(host, JobFinished{bench.generation()});
  REQUIRE(bench.count<Verdict>(b) == 1);
  SECTION("it confirms: its stream is over, and nobody is waited for") {
    bench.say(b, VerdictHeard{});
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
    bench.say(again, VerdictHeard{});
    CHECK(bench.round.may_end(bench.now));
  }
  SECTION("but it does not come again: the linger is for that") {
    bench.break_stream(b);
    bench.pass(5s);
    CHECK(bench.round.may_end(bench.now));
  }
  SECTION("the node in this process needs no words") {
    bench.break_stream(host);
    bench.say(b, VerdictHeard{});
    CHECK(bench.round.may_end(bench.now));
  }
}

TEST_CASE("a node whose stream was broken when the verdict was given may still come for it", "[round]") {
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

// --- loss of the coordinator --------------------------------------------------------------------------------------

namespace {

/// A fresh coordinator, as it comes up while the world of another one still runs.
RoundSetup fresh_setup() {
  RoundSetup setup = bench_setup();
  setup.lineage = {{0x3333, 0x4444}};
  return setup;
}

}  // namespace

TEST_CASE("nodes that know nothing wait while a generation on record may still run", "[round]") {
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

TEST_CASE("a fresh coordinator waits for members as long as they arrive, and 10 s longer", "[round]") {
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

TEST_CASE("a fresh coordinator goes on with a generation when it has heard all of its members", "[round]") {
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
          "its coordinator was lost, and 1 of its 2 nodes did not come to this one: for 10 s none of the others came");
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
      CHECK(bench.last<Revoke>(b)->why.what ==
            "its coordinator was lost, and 1 of its 2 nodes did not come to this one: a worker of node b has failed or lost a peer");
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

TEST_CASE("who coordinated a generation is not waited for once all its others are back", "[round]") {
  const CoordinatedByMember old;
  RoundBench bench{one_to_three, fresh_setup()};
  const auto a = bench.resume("a", old.a);
  SECTION("it went with its coordinator: the others go on without it, at once") {
    const auto c = bench.resume("c", old.c);
    CHECK(bench.last<Revoke>(a)->why.what ==
          "its coordinator was lost, and 1 of its 3 nodes did not come to this one: the one that is missing coordinated it");
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
  SECTION("nor for the end of the job, which whoever knows of it tells after its Join: it ends no generation before that") {
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

TEST_CASE("who was elected may step down and come like the others: it is waited for while the generation can go on", "[round]") {
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

TEST_CASE("a spare that comes to a fresh coordinator first does not take the place of what runs", "[round]") {
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

TEST_CASE("that the job is over is believed of a node that was there alone", "[round]") {
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

TEST_CASE("a job that is over is over for a coordinator that was not there", "[round]") {
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

TEST_CASE("a coordinator that has begun a generation itself adopts none", "[round]") {
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

TEST_CASE("restarts are counted on by a fresh coordinator", "[round]") {
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

TEST_CASE("a coordinator that hears nobody any more blames its own line, and waits for all as a fresh one does", "[round]") {
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

TEST_CASE("who comes when every member is gone at once learns what is waited for, and how long", "[round]") {
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

TEST_CASE("the log tells of the first step of each generation, and then of one in a minute", "[round]") {
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

// --- growth -------------------------------------------------------------------------------------------------------

TEST_CASE("a newcomer is taken in while there is room, once the generation has settled", "[round]") {
  Pair bench{one_to_three};
  const auto grow = [&](const std::string& node) {
    const auto stream = bench.join(node);
    return stream;
  };
  SECTION("a young generation is left alone at first") {
    const auto c = grow("c");
    bench.pass(999ms);
    CHECK_THAT(bench.last<Waiting>(c)->why, Contains("it makes room for newcomers in 1 s"));
    CHECK(bench.count<Revoke>(bench.a) == 0);
    bench.pass(1ms);
    CHECK(bench.last<Revoke>(bench.a)->why.what == "the world grows by c");
  }
  SECTION("an old one takes it in soon") {
    bench.pass(1min);
    const auto c = grow("c");
    bench.pass(250ms);
    bench.acknowledge(bench.a, "a");
    bench.acknowledge(bench.b, "b");
    CHECK(bench.world(c) == "a b c");
    CHECK(bench.last<World>(c)->restarts.generations == 0);
  }
}

TEST_CASE("a generation makes room for more workers of its members, at no cost, once it has settled", "[round]") {
  Pair bench{{.nodes_min = 2, .nodes_max = 2, .last_call = 0s}};
  const auto again = [&](StreamNumber stream, const std::string& node, std::uint32_t workers) {
    Join join = bench.a_join(node);
    join.last = bench.generation();
    join.workers = workers;
    bench.say(stream, join);
  };
  const std::uint32_t before = bench.last<World>(bench.a)->seat.world_size;
  bench.say(bench.b, MoreWorkers{bench.generation()});
  bench.say(bench.b, MoreWorkers{bench.generation()});
  SECTION("in one of its own") {
    bench.pass(999ms);
    CHECK(bench.count<Revoke>(bench.a) == 0);
    bench.pass(1ms);
    CHECK(bench.last<Revoke>(bench.a)->why.what == "the world grows by workers of b");
    CHECK(bench.last<Revoke>(bench.a)->why.code == Code::generation_over);
    again(bench.a, "a", before / 2);
    again(bench.b, "b", before / 2 + 1);
    CHECK(bench.last<World>(bench.b)->seat.world_size == before + 1);
    CHECK(bench.last<World>(bench.b)->restarts == RestartCounts{});
    bench.pass(1min);
    CHECK(bench.count<Revoke>(bench.a) == 1);  // what was asked for is there
  }
  SECTION("all that ask within a moment, together") {
    bench.say(bench.a, MoreWorkers{bench.generation()});
    bench.pass(1s);
    CHECK(bench.last<Revoke>(bench.a)->why.what == "the world grows by workers of a, workers of b");
  }
  SECTION("not while a member is done, for its work would be done twice") {
    bench.say(bench.a, WorkersDone{bench.generation()});
    bench.pass(1min);
    CHECK(bench.count<Revoke>(bench.b) == 0);
  }
  SECTION("not when it was meant for an earlier one") {
    bench.pass(1s);
    again(bench.a, "a", before / 2);
    again(bench.b, "b", before / 2);
    Generation earlier = bench.generation();
    --earlier.number;
    bench.say(bench.b, MoreWorkers{earlier});
    bench.pass(1min);
    CHECK(bench.count<Revoke>(bench.a) == 1);
  }
}

TEST_CASE("a node that comes and goes does not stop the others from working", "[round]") {
  Pair bench{one_to_three};
  Duration worked{};
  const Instant start = bench.now;
  for (std::uint64_t incarnation = 1; bench.now < start + 10min; ++incarnation) {
    const auto c = bench.join("c", incarnation);
    const Instant began = bench.now;
    bench.say(bench.a, Progress{bench.generation(), 5});  // the same step again and again is no work done
    while (bench.count<Revoke>(bench.a) < 2 * incarnation - 1) bench.pass(10ms);
    worked += bench.now - began;
    bench.acknowledge(bench.a, "a");
    bench.acknowledge(bench.b, "b");
    bench.break_stream(c);
    bench.pass(250ms);
    bench.acknowledge(bench.a, "a");
    bench.acknowledge(bench.b, "b");
  }
  CHECK(worked > (bench.now - start) * 9 / 10);
  CHECK_FALSE(bench.round.verdict());
}

// --- nodes whose workers keep failing -------------------------------------------------------------------------------

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

TEST_CASE("an excluded node is taken where the others are fewer than the minimum, and then the rules of restarts hold",
          "[round][exclude]") {
  Bad bench{{.nodes_min = 2, .nodes_max = 3}};
  for (int i = 0; i < 3; ++i) bench.fail_at_start();
  REQUIRE(bench.world(bench.a) == "a b");
  const std::size_t begun = bench.begun.size();
  bench.pass(100ms);
  bench.break_stream(bench.b);
  bench.pass(300ms);
  bench.acknowledge(bench.a, "a");
  CHECK_THAT(bench.said.back(),
             Contains("1 of at least 2 nodes are here: node c, which is excluded, is taken in 1 s, unless another comes before"));
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

TEST_CASE("the budget of a worker that dies before its session is the job's", "[round][exclude]") {
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

TEST_CASE("whether a job is a Job may be known only after a worker has died: where the others can go on, that is waited for",
          "[round][exclude]") {
  RoundBench bench{one_to_three};
  const auto a = bench.join("a"), b = bench.join("b"), c = bench.join("c");
  REQUIRE(bench.world(a) == "a b c");
  bench.say(c, Bad::at_start(bench.generation()));
  CHECK(bench.count<Revoke>(a) == 0);
  // What failed is told at once.
  CHECK_THAT(bench.said.back(),
             Contains("worker 4 of node c ended by exit code 127, and no restart is left for a plain program; for up to 10 s"));
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

TEST_CASE("steps that are done again do not end a node's row of failures, new ones do", "[round][exclude]") {
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
  }
  SECTION("nobody has trained: it is the job's") {
    Bad bench{one_to_three, false};
    bench.say(bench.c, failure(bench.generation(), true, exit_code_configuration));
    bench.all_acknowledge();
    CHECK(bench.round.verdict()->exit_code == exit_code_configuration);
  }
}

TEST_CASE("a failure that another member's loss explains is not held against its node", "[round][exclude]") {
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

// --- who comes after the end ----------------------------------------------------------------------------------------

TEST_CASE("who comes just after the end of a job hears that it is done: its coordinator stays for that", "[round][late]") {
  const auto lines = [](const RoundBench& bench) {
    return std::count_if(bench.said.begin(), bench.said.end(),
                         [](const std::string& line) { return line.find("the coordinator stays") != std::string::npos; });
  };
  const auto ended = [](RoundBench& bench, StreamNumber a, StreamNumber b) {
    bench.say(a, JobFinished{bench.generation()});
    REQUIRE(bench.round.verdict());
    bench.say(a, VerdictHeard{}), bench.say(b, VerdictHeard{});
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
    bench.say(bench.a, VerdictHeard{});
    CHECK_FALSE(bench.round.may_end(bench.now));
  }
  SECTION("nor after a failure: who comes then may try again") {
    Pair bench{one_to_three};
    bench.say(bench.b, failure(bench.generation()));
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b");
    REQUIRE(bench.round.verdict());
    bench.say(bench.a, VerdictHeard{}), bench.say(bench.b, VerdictHeard{});
    CHECK(bench.round.may_end(bench.now));
  }
}

}  // namespace elrun::test
