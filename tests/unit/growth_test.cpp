#include "rendezvous/round/growth.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::growth {
namespace {

const NodeId a{"a"}, b{"b"};
constexpr Growth::Size whole{2, 8}, short_of_a_worker{2, 7}, short_of_a_node{1, 4};
Instant at(Duration since_start) { return Instant{} + since_start; }
Growth::Newcomers one(Instant since) { return {since, 1}; }

/// It began `at(0s)`, after one that had lost nothing.
Growth growth_of(Growth::Size size) {
  Growth growth;
  growth.begin(whole, at(-100s));
  growth.begin(size, at(0s));
  return growth;
}

}  // namespace

TEST_CASE("a generation ends for growth only where somebody has more", "[growth]") {
  Growth growth = growth_of(whole);
  CHECK_FALSE(growth.at({}));
  CHECK(growth.at(one(at(60s))) == at(60s) + growth_gather);
  growth.offer(a, 1, at(70s));
  CHECK(growth.at({}) == at(70s));
  CHECK(growth.offers() == std::map<NodeId, std::uint32_t>{{a, 1}});
  SECTION("an offer is for the next generation, and no longer") {
    growth.begin(whole, at(80s));
    CHECK_FALSE(growth.at({}));
  }
}

TEST_CASE("what the world never had is let in once the generation has settled, together with what comes within a moment", "[growth]") {
  Growth growth = growth_of(whole);
  growth.decided(1, at(100ms));
  CHECK(growth.at(one(at(200ms))) == at(1s));
  CHECK(growth.at(one(at(900ms))) == at(900ms) + growth_gather);
}

TEST_CASE("a young generation is left alone, for longer after each growth that no decided step has followed", "[growth]") {
  Growth growth = growth_of(whole);
  for (const Duration settle : {1s, 2s, 4s, 8s, 16s, 32s, 32s}) {
    CHECK(growth.at(one(at(0s))) == at(settle));
    growth.grew(at(-60s));
  }
  growth.progressed();
  CHECK(growth.at(one(at(0s))) == at(1s));
}

TEST_CASE("what takes a lost place is let in at once, when the others have decided a step without it", "[growth]") {
  SECTION("a worker") {
    Growth growth = growth_of(short_of_a_worker);
    growth.offer(a, 1, at(200ms));
    CHECK(growth.at({}) == at(1s));
    growth.decided(7, at(250ms));
    CHECK(growth.at({}) == at(200ms));
  }
  SECTION("a node") {
    Growth growth = growth_of(short_of_a_node);
    CHECK(growth.at(one(at(200ms))) == at(1s));
    growth.decided(7, at(250ms));
    CHECK(growth.at(one(at(200ms))) == at(200ms));
  }
  SECTION("more nodes than were lost are no reason to wait") {
    Growth growth = growth_of(short_of_a_node);
    growth.decided(7, at(250ms));
    CHECK(growth.at(Growth::Newcomers{at(200ms), 3}) == at(200ms));
  }
}

TEST_CASE("while others are still missing, those that take lost places are let in together", "[growth]") {
  SECTION("workers") {
    Growth growth = growth_of({2, 5});
    growth.decided(7, at(50ms));
    growth.offer(a, 1, at(60ms));
    CHECK(growth.at({}) == at(60ms) + growth_gather);
    growth.offer(a, 2, at(70ms));
    CHECK(growth.at({}) == at(60ms) + growth_gather);
    growth.offer(b, 0, at(80ms));  // of a node that does not tell how many
    CHECK(growth.at({}) == at(60ms));
  }
  SECTION("nodes") {
    Growth growth;
    growth.begin({4, 8}, at(-100s));
    growth.begin({2, 4}, at(0s));
    growth.decided(7, at(50ms));
    CHECK(growth.at(one(at(60ms))) == at(60ms) + growth_gather);
    CHECK(growth.at(Growth::Newcomers{at(60ms), 2}) == at(60ms));
  }
}

TEST_CASE("growths are apart, so that what comes and goes does not keep the others from working", "[growth]") {
  Growth growth = growth_of(whole);
  Instant now = at(10s);
  for (const Duration apart : {1s, 2s, 4s, 8s, 16s, 32s, 32s}) {
    growth.begin(short_of_a_node, now);
    growth.decided(7, now);
    const auto next = growth.at(one(now));
    REQUIRE(next);
    CHECK(*next == (apart == 1s ? now : now - 1ms + apart));  // the first one waits for none
    growth.grew(*next);
    now = *next + 1ms;
  }
  growth.progressed();
  SECTION("for a second again, once a newly decided step has followed, while others are still missing") {
    growth.begin({4, 8}, now);
    growth.begin({2, 4}, now + 100ms);
    growth.decided(8, now + 150ms);
    CHECK(growth.at(one(now + 110ms)) == now - 1ms + 1s);
  }
  SECTION("for no second where the world is whole again") {
    growth.begin(short_of_a_node, now + 100ms);
    growth.decided(8, now + 150ms);
    CHECK(growth.at(one(now + 110ms)) == now + 110ms);
  }
}

TEST_CASE("three growths that make the world whole may be early, and each second gives one back", "[growth]") {
  Growth growth = growth_of(whole);
  Instant now = at(10s);
  /// A worker dies and another one is there, both at once. Returns for how long that one waits.
  const auto waits = [&] {
    growth.begin(short_of_a_worker, now);
    growth.decided(7, now);
    growth.progressed();
    growth.offer(a, 1, now);
    const Instant next = growth.at({}).value();
    return next - now;
  };
  const auto grows = [&] {
    const Duration wait = waits();
    growth.grew(now += wait);
    return wait;
  };
  CHECK(grows() == 0s);
  for (std::uint32_t early = 0; early < growths_early_max; ++early) CHECK(grows() == 0s);
  for (int i = 0; i < 5; ++i) CHECK(grows() == 1s);  // who dies again and again
  now += 1s;
  CHECK(grows() == 0s);
  CHECK(waits() == 1s);
  now += 1h;
  for (std::uint32_t early = 0; early <= growths_early_max; ++early) CHECK(grows() == 0s);
  CHECK(waits() == 1s);
}

TEST_CASE("growth waits for the step at hand, for twice as long as the last one took", "[growth]") {
  Growth growth = growth_of(short_of_a_worker);
  growth.decided(1, at(1s));
  growth.offer(a, 1, at(1500ms));
  CHECK(growth.at({}) == at(1500ms));  // nobody knows how long a step takes
  growth.decided(2, at(1800ms));
  CHECK(growth.at({}) == at(1500ms));  // this is the border
  growth.begin(short_of_a_worker, at(5s));
  growth.decided(1, at(6s));
  growth.decided(2, at(7s));
  growth.offer(a, 1, at(7s) + 1ms);
  CHECK(growth.at({}) == at(9s));
  growth.decided(2, at(7s) + 2ms);  // another member says so of the same step
  CHECK(growth.at({}) == at(9s));
  growth.decided(3, at(8s));
  CHECK(growth.at({}) == at(7s) + 1ms);
}

}  // namespace elrun::test::growth
