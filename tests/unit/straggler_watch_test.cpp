#include "lib/job/straggler_watch.hpp"

#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

/// One step in which each rank has a slot: the ranks that are named.
std::vector<std::uint32_t> step(StragglerWatch& watch, std::initializer_list<Duration> own) {
  for (const Duration time : own) watch.hear(time, 1);
  std::vector<std::uint32_t> ranks;
  for (const Straggler& straggler : watch.end_step()) ranks.push_back(straggler.rank);
  return ranks;
}

/// Of a hundred such steps: in which one a rank was named, for each time.
std::vector<std::pair<int, std::uint32_t>> hundred(std::initializer_list<Duration> own) {
  StragglerWatch watch;
  std::vector<std::pair<int, std::uint32_t>> named;
  for (int i = 1; i <= 100; ++i)
    for (const std::uint32_t rank : step(watch, own)) named.emplace_back(i, rank);
  return named;
}
using Named = std::vector<std::pair<int, std::uint32_t>>;

}  // namespace

TEST_CASE("a rank that is 200 ms late in each step is named within 20 of them, once", "[job][straggler]") {
  for (const std::size_t ranks : {2u, 3u, 8u}) {
    StragglerWatch watch;
    int named_at = 0, named = 0;
    for (int i = 1; i <= 100; ++i) {
      for (std::size_t r = 0; r < ranks; ++r) watch.hear(r == 1 ? Duration{250ms} : Duration{50ms}, 1);
      for (const Straggler& straggler : watch.end_step()) {
        CHECK(straggler.rank == 1);
        CHECK(straggler.times == Approx(5));
        CHECK(straggler.lost == 200ms * straggler.steps);
        named_at = i, ++named;
      }
    }
    CHECK(named == 1);
    CHECK(named_at == 10);
  }
}

TEST_CASE("where slots are long, 200 ms are less than half as much again, and are named in the twentieth step", "[job][straggler]") {
  CHECK(hundred({400ms, 600ms}) == Named{{20, 1}});
  CHECK(hundred({1300ms, 1500ms, 1300ms}) == Named{{20, 1}});
  CHECK(hundred({1s, 1500ms}) == Named{{20, 1}});
  SECTION("of several slots of a step what they lost together counts") {
    StragglerWatch watch;
    int named_at = 0;
    for (int i = 1; i <= 100; ++i) {
      watch.hear(800ms, 8), watch.hear(1s, 8);
      if (!watch.end_step().empty()) named_at = i;
    }
    CHECK(named_at == 20);
  }
  SECTION("a row of both kinds of slow steps is one row") {
    StragglerWatch watch;
    std::vector<int> named;
    for (int i = 1; i <= 40; ++i)
      if (!step(watch, {400ms, i % 4 == 0 ? 800ms : 550ms}).empty()) named.push_back(i);
    CHECK(named == std::vector{20});
  }
}

TEST_CASE("up to half of the ranks are named; of more nobody knows whether they are slow or the others fast", "[job][straggler]") {
  CHECK(hundred({605ms, 405ms, 605ms, 405ms}) == Named{{20, 0}, {20, 2}});
  CHECK(hundred({50ms, 250ms, 251ms, 50ms}) == Named{{10, 1}, {10, 2}});
  CHECK(hundred({605ms, 405ms, 605ms}).empty());
  SECTION("which of them is the slowest may change from step to step") {
    StragglerWatch watch;
    Named named;
    for (int i = 1; i <= 40; ++i)
      for (const std::uint32_t rank : step(watch, {50ms, i % 2 == 0 ? 250ms : 260ms, 255ms, 50ms})) named.emplace_back(i, rank);
    CHECK(named == Named{{10, 1}, {10, 2}});
  }
}

TEST_CASE("a rank is not named", "[job][straggler]") {
  StragglerWatch watch;
  SECTION("in a world of one, or where it alone has slots") {
    for (int i = 0; i < 100; ++i) {
      watch.hear(1h, 1);
      CHECK(watch.end_step().empty());
      watch.hear(1h, 1), watch.hear(0s, 0);
      CHECK(watch.end_step().empty());
    }
  }
  SECTION("for slots that others do not have") {
    for (int i = 0; i < 100; ++i) {
      watch.hear(3s, 3), watch.hear(2s, 2), watch.hear(2s, 2);
      CHECK(watch.end_step().empty());
    }
  }
  SECTION("for less than half as much again that is less than 100 ms, or less than 15 %") {
    CHECK(hundred({200ms, 300ms}).empty());
    CHECK(hundred({2s, 2290ms}).empty());
  }
  SECTION("while the job has not lost a second to it") {
    for (int i = 0; i < 100; ++i) CHECK(step(watch, {1ms, 10ms}).empty());
    for (int i = 0; i < 20; ++i) (void)step(watch, {1ms, 10ms});
    CHECK(step(watch, {1ms, 10ms}).empty());
  }
  SECTION("when another one is slower in between, or none") {
    for (int i = 0; i < 100; ++i) CHECK((i % 10 == 9 ? step(watch, {1s, 100ms}) : step(watch, {100ms, 1s})).empty());
    for (int i = 0; i < 100; ++i) CHECK((i % 10 == 9 ? step(watch, {1s, 1s}) : step(watch, {100ms, 1s})).empty());
  }
}

TEST_CASE("ranks that differ by chance alone are never named", "[job][straggler]") {
  for_all_seeds(20, [](Rng& rng) {
    StragglerWatch watch;
    const std::uint64_t ranks = 2 + rng.below(7);
    const std::int64_t slot = rng.chance(0.5) ? 100'000'000 : 1'000'000'000;  // shorter and longer than the 100 ms that are late
    for (int i = 0; i < 20'000; ++i) {
      // Now and then one is ten times as slow, as on a machine that does something else.
      for (std::uint64_t r = 0; r < ranks; ++r)
        watch.hear(
            Duration{slot + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(slot) * 2 / 5))} * (rng.chance(0.05) ? 10 : 1),
            1);
      REQUIRE(watch.end_step().empty());
    }
  });
}

}  // namespace elrun::test
