#include "lib/job/straggler_watch.hpp"

#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

/// One step in which each rank has a slot.
std::optional<Straggler> step(StragglerWatch& watch, std::initializer_list<Duration> own) {
  for (const Duration time : own) watch.hear(time, 1);
  return watch.end_step();
}

}  // namespace

TEST_CASE("a rank that is 200 ms late in each step is named within 20 of them, once", "[job][straggler]") {
  for (const std::size_t ranks : {2u, 3u, 8u}) {
    StragglerWatch watch;
    int named_at = 0, named = 0;
    for (int i = 1; i <= 100; ++i) {
      for (std::size_t r = 0; r < ranks; ++r) watch.hear(r == 1 ? Duration{250ms} : Duration{50ms}, 1);
      if (const auto straggler = watch.end_step()) {
        CHECK(straggler->rank == 1);
        CHECK(straggler->times == Approx(5));
        CHECK(straggler->lost == 200ms * straggler->steps);
        named_at = i, ++named;
      }
    }
    CHECK(named == 1);
    CHECK(named_at == 10);
  }
}

TEST_CASE("a rank is not named", "[job][straggler]") {
  StragglerWatch watch;
  SECTION("in a world of one, or where it alone has slots") {
    for (int i = 0; i < 100; ++i) {
      watch.hear(1h, 1);
      CHECK_FALSE(watch.end_step());
      watch.hear(1h, 1), watch.hear(0s, 0);
      CHECK_FALSE(watch.end_step());
    }
  }
  SECTION("for slots that others do not have") {
    for (int i = 0; i < 100; ++i) {
      watch.hear(3s, 3), watch.hear(2s, 2), watch.hear(2s, 2);
      CHECK_FALSE(watch.end_step());
    }
  }
  SECTION("for less than half as much again") {
    for (int i = 0; i < 100; ++i) CHECK_FALSE(step(watch, {1s, 1500ms}));
  }
  SECTION("while the job has not lost a second to it") {
    for (int i = 0; i < 100; ++i) CHECK_FALSE(step(watch, {1ms, 10ms}));
    for (int i = 0; i < 20; ++i) (void)step(watch, {1ms, 10ms});
    CHECK_FALSE(step(watch, {1ms, 10ms}));
  }
  SECTION("when another one is slower in between, or none") {
    for (int i = 0; i < 100; ++i) CHECK_FALSE((i % 10 == 9 ? step(watch, {1s, 100ms}) : step(watch, {100ms, 1s})));
    for (int i = 0; i < 100; ++i) CHECK_FALSE((i % 10 == 9 ? step(watch, {1s, 1s}) : step(watch, {100ms, 1s})));
  }
}

TEST_CASE("ranks that differ by chance alone are never named", "[job][straggler]") {
  for_all_seeds(20, [](Rng& rng) {
    StragglerWatch watch;
    const std::uint64_t ranks = 2 + rng.below(7);
    for (int i = 0; i < 20'000; ++i) {
      // Now and then one is ten times as slow, as on a machine that does something else.
      for (std::uint64_t r = 0; r < ranks; ++r)
        watch.hear(Duration{100'000'000 + static_cast<std::int64_t>(rng.below(40'000'000))} * (rng.chance(0.05) ? 10 : 1), 1);
      REQUIRE_FALSE(watch.end_step());
    }
  });
}

}  // namespace elrun::test
