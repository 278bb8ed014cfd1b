// Round: a running generation ends to take more nodes or workers in.
#include "tests/support/round_pair.hpp"

namespace elrun::test {

using Catch::Matchers::Contains;

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

TEST_CASE("a generation grows by workers of its members at no restart, once it has settled", "[round]") {
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

TEST_CASE("a worker that takes the place of a dead one is let in when the next step is decided", "[round]") {
  Pair bench{{.nodes_min = 2, .nodes_max = 2, .last_call = 0s, .max_restarts = 3}};
  const auto again = [&](StreamNumber stream, const std::string& node, std::uint32_t workers) {
    bench.say(stream, Acknowledge{bench.generation()});
    Join join = bench.a_join(node);
    join.last = bench.generation();
    join.workers = workers;
    bench.say(stream, join);
  };
  bench.say(bench.b, failure(bench.generation(), true));
  again(bench.a, "a", 2);
  again(bench.b, "b", 1);
  REQUIRE(bench.begun.size() == 2);
  bench.say(bench.b, MoreWorkers{bench.generation(), 1});
  CHECK(bench.count<Revoke>(bench.a) == 1);
  bench.say(bench.a, Progress{bench.generation(), 5});
  CHECK(bench.last<Revoke>(bench.a)->why.what == "the world grows by workers of b");
  again(bench.a, "a", 2);
  again(bench.b, "b", 2);
  CHECK(bench.last<World>(bench.b)->seat.world_size == 4);
}

TEST_CASE("a worker that dies whenever it has joined ends a generation of the others once a second, and three times more", "[round]") {
  Pair bench{{.nodes_min = 2, .nodes_max = 2, .last_call = 0s, .max_restarts = 3}};
  const auto again = [&](StreamNumber stream, const std::string& node, std::uint32_t workers) {
    bench.say(stream, Acknowledge{bench.generation()});
    Join join = bench.a_join(node);
    join.last = bench.generation();
    join.workers = workers;
    bench.say(stream, join);
  };
  std::uint64_t step = 0;
  std::vector<Duration> growths;  // since the start
  const Instant start = bench.now;
  const Duration stays = GENERATE(Duration{0}, Duration{200ms}, Duration{900ms});
  while (bench.now < start + 1min && growths.size() < 100) {  // without a bound there would be no end
    bench.pass(stays);
    bench.say(bench.a, Progress{bench.generation(), ++step});
    bench.say(bench.b, failure(bench.generation(), true));
    again(bench.a, "a", 2), again(bench.b, "b", 1);
    bench.say(bench.b, MoreWorkers{bench.generation(), 1});
    bench.say(bench.a, Progress{bench.generation(), ++step});
    while (bench.count<Revoke>(bench.a) < 2 * growths.size() + 2) bench.pass(10ms);
    growths.push_back(bench.now - start);
    again(bench.a, "a", 2), again(bench.b, "b", 2);
  }
  CHECK_FALSE(bench.round.verdict());
  CHECK(bench.last<World>(bench.a)->restarts.used == 0);
  CHECK(growths[3] == 4 * stays);  // the first one and three more need not wait
  for (std::size_t from = 0; from < growths.size(); ++from)
    for (std::size_t to = from; to < growths.size(); ++to)
      CHECK(static_cast<std::int64_t>(to - from) + 1 <= (growths[to] - growths[from]) / growth_pause + growths_early_max + 1);
}

TEST_CASE("a node that takes the place of a lost one is let in as soon as a step was decided without it", "[round]") {
  Pair bench{one_to_three};
  bench.say(bench.b, Leave{"a signal"});
  bench.acknowledge(bench.a, "a");
  REQUIRE(bench.world(bench.a) == "a");
  bench.say(bench.a, Progress{bench.generation(), 5});
  bench.pass(10ms);
  const auto c = bench.join("c");
  CHECK(bench.last<Revoke>(bench.a)->why.what == "the world grows by c");
  bench.acknowledge(bench.a, "a");
  CHECK(bench.world(c) == "a c");
}

TEST_CASE("a node that comes and goes does not keep the others from working", "[round]") {
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

}  // namespace elrun::test
