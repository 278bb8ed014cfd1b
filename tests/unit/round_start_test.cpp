// Members whose workers have been started and do not join the world.
#include "tests/support/round_bench.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

/// Nodes "a" and "b" train; "c" comes later, and its workers hang at their start.
struct Stuck : RoundBench {
  StreamNumber a, b, c{};
  explicit Stuck(RoundOptions round_options = {.nodes_min = 1, .nodes_max = 3, .last_call = 1s}, bool trained = true)
      : RoundBench{round_options}, a{join("a")}, b{join("b")} {
    pass(1s);
    REQUIRE(world(a) == "a b");
    say(a, WorkersAreJob{generation()});
    if (trained) say(a, Progress{generation(), 5});
    c = join("c");
    grow();
  }
  void grow() {
    pass(2s);
    acknowledge(a, "a"), acknowledge(b, "b");
    REQUIRE(world(c) == "a b c");
  }
  void starting(std::uint32_t count = 2, bool watched = false) {
    say(c, WorkersStarting{.generation = generation(), .rank = 4, .count = count, .ago = 10s, .watched = watched});
  }
  [[nodiscard]] std::size_t lines() const {
    return static_cast<std::size_t>(std::count_if(
        said.begin(), said.end(), [](const std::string& line) { return line.find("rank 4 of node c") != std::string::npos; }));
  }
};

}  // namespace

TEST_CASE("members learn for whom they wait, and since when, once a minute", "[round][start]") {
  Stuck bench;
  bench.pass(10s);
  bench.starting();
  CHECK(bench.lines() == 0);
  bench.pass(1s);
  CHECK(bench.lines() == 1);
  CHECK_THAT(bench.last<Waiting>(bench.a)->why,
             Contains("2 nodes wait for rank 4 of node c (and 1 more there; started 10 s ago, has not opened its session)"));
  CHECK_THAT(bench.last<Waiting>(bench.a)->why, Contains("if that lasts another 290 s, the others go on without that node"));
  CHECK(bench.last<Waiting>(bench.a)->running == bench.generation());
  CHECK_FALSE(bench.last<Waiting>(bench.a)->for_this_node);
  CHECK(bench.last<Waiting>(bench.c)->for_this_node);
  bench.starting(1);
  bench.pass(58s);
  CHECK(bench.lines() == 1);
  bench.pass(62s);
  CHECK(bench.lines() == 3);
  bench.starting(0);
  bench.pass(200s);
  CHECK(bench.lines() == 3);
  CHECK(bench.world(bench.a) == "a b c");
}

TEST_CASE("workers that start have the time that they have left after a stop of the coordinator itself", "[round][start]") {
  Stuck bench;
  bench.pass(10s);
  bench.starting();
  bench.pass(1s);
  bench.now += 400s;
  bench.feed(RoundTick{});
  bench.pass(287s);
  CHECK(bench.count<Revoke>(bench.a) == 1);  // the growth by c
  bench.pass(3s);
  CHECK(bench.count<Revoke>(bench.a) == 2);
}

TEST_CASE("a job that has trained goes on without a node whose workers do not join the world", "[round][start]") {
  Stuck bench;
  bench.pass(10s);
  bench.starting();
  bench.pass(289s);
  CHECK(bench.count<Revoke>(bench.a) == 1);  // the growth by c
  bench.pass(1s);
  REQUIRE(bench.count<Revoke>(bench.a) == 2);
  CHECK_THAT(bench.last<Revoke>(bench.a)->why.what, Contains("rank 4 of node c has not joined the world within 300 s of the start"));
  bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b"), bench.acknowledge(bench.c, "c");
  CHECK(bench.world(bench.a) == "a b");
  CHECK(bench.last<World>(bench.a)->restarts.used == 0);
  CHECK_FALSE(bench.round.verdict());
  SECTION("taken before that where the others are fewer than the minimum, but not before who is missing had 60 s") {
    bench.break_stream(bench.a), bench.break_stream(bench.b);
    bench.pass(59s);
    CHECK(bench.world(bench.c).empty());
    bench.pass(3s);
    CHECK(bench.world(bench.c) == "c");
  }
  SECTION("it tries again after as long as it held the others up; the next time after twice that") {
    bench.pass(290s);
    CHECK(bench.world(bench.a) == "a b");
    bench.say(bench.a, Progress{bench.generation(), 9});
    bench.pass(9s);
    bench.grow();
    bench.pass(10s);
    bench.starting();
    bench.pass(290s);
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.b, "b"), bench.acknowledge(bench.c, "c");
    CHECK(bench.world(bench.a) == "a b");
    bench.pass(590s);
    CHECK(bench.world(bench.a) == "a b");
  }
}

TEST_CASE("who does not join the world is waited for where nobody can say that it should have", "[round][start]") {
  const auto stays = [](Stuck& bench, const std::string& why) {
    bench.pass(10s);
    bench.starting();
    bench.pass(1000s);
    CHECK(bench.world(bench.a) == "a b c");
    CHECK(bench.count<Revoke>(bench.a) == 1);
    CHECK_THAT(bench.last<Waiting>(bench.a)->why, Contains(why));
  };
  SECTION("no step is decided: the program may take so long") {
    Stuck bench{{.nodes_min = 1, .nodes_max = 3, .last_call = 1s}, false};
    stays(bench, "no step is decided yet");
  }
  SECTION("its own agent has a limit for it") {
    Stuck bench;
    bench.starting(2, true);
    bench.pass(1000s);
    CHECK(bench.world(bench.a) == "a b c");
    CHECK_THAT(bench.last<Waiting>(bench.c)->why, Contains("its node ends it after its --hang_timeout"));
  }
  SECTION("all are starting: nobody waits") {
    Stuck bench;
    bench.starting();
    for (const auto& stream : {bench.a, bench.b}) bench.say(stream, WorkersStarting{.generation = bench.generation(), .count = 2});
    bench.pass(1000s);
    CHECK(bench.lines() == 0);
    CHECK(bench.world(bench.a) == "a b c");
  }
  SECTION("a plain program never joins anything") {
    RoundBench bench{{.nodes_min = 1, .nodes_max = 2, .last_call = 1s}};
    const auto a = bench.join("a"), b = bench.join("b");
    bench.say(b, WorkersStarting{.generation = bench.generation(), .count = 2});
    bench.pass(1000s);
    CHECK(bench.count<Waiting>(a) == 0);
    CHECK(bench.count<Revoke>(a) == 0);
  }
  SECTION("the others would be fewer than the minimum") {
    Stuck bench{{.nodes_min = 2, .nodes_max = 3, .last_call = 1s}};
    bench.break_stream(bench.b);
    bench.pass(1s);
    bench.acknowledge(bench.a, "a"), bench.acknowledge(bench.c, "c");
    REQUIRE(bench.world(bench.a) == "a c");
    bench.say(bench.c, WorkersStarting{.generation = bench.generation(), .rank = 2, .count = 2});
    bench.pass(1000s);
    CHECK(bench.world(bench.a) == "a c");
    CHECK_THAT(bench.last<Waiting>(bench.a)->why, Contains("fewer nodes than the minimum would be left"));
  }
}

TEST_CASE("more nodes hang at their start than failures are remembered: the others go on without them", "[round][start]") {
  constexpr std::size_t stuck = histories_max + 76, others = 10;
  RoundBench bench{{.nodes_min = others, .nodes_max = stuck + others, .last_call = 1s}};
  std::vector<StreamNumber> streams;
  const auto name = [](std::size_t i) { return "n" + std::to_string(i); };
  for (std::size_t i = 0; i < stuck + others; ++i) streams.push_back(bench.join(name(i)));
  bench.pass(1s);
  bench.say(streams[0], WorkersAreJob{bench.generation()});
  bench.say(streams[0], Progress{bench.generation(), 5});
  bench.say(streams[0], WorkerFailed{bench.generation(), 0, 9, "signal 9", true, {}, {}});
  for (std::size_t i = 0; i < streams.size(); ++i) bench.acknowledge(streams[i], name(i));
  bench.pass(2s);
  REQUIRE(bench.begun.size() == 2);
  REQUIRE(bench.members.size() == stuck + others);
  for (std::size_t i = 0; i < stuck; ++i)
    bench.say(streams[i],
              WorkersStarting{.generation = bench.generation(), .rank = static_cast<std::uint32_t>(2 * i), .count = 2, .ago = 10s});
  bench.pass(302s);
  for (std::size_t i = 0; i < streams.size(); ++i) bench.acknowledge(streams[i], name(i));
  bench.pass(2s);
  CHECK(bench.begun.size() == 3);
  CHECK(bench.members.size() == others);
}

}  // namespace elrun::test
