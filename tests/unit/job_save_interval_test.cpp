// After which steps a job saves, by number, time and cost.

#include "lib/job/save/save_interval.hpp"

#include <algorithm>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

/// A job of one rank whose steps and saves take what the test says.
struct Training {
  explicit Training(const SaveInterval::Wish& wish) : interval{wish} { interval.begin(now); }
  /// True: a save is begun after this step.
  bool step(Duration took, Duration stall = {}, unsigned written_in = 0, Duration slower = {}) {
    const bool is_writing = writing > 0;
    if (is_writing) --writing, took += slower;
    else if (copies) took += slower;
    copies = false;
    now += took;
    const bool asks = interval.vote(++steps, now, writing > 0);
    if (!asks) return false;
    const Instant begun = now;
    now += stall;
    interval.saved(begun, now);
    writing = written_in, copies = true;
    saves.push_back(steps);
    return true;
  }
  SaveInterval interval;
  Instant now{Duration{1'000'000'000'000}};
  std::uint64_t steps = 0;
  unsigned writing = 0;
  bool copies = false;
  std::vector<std::uint64_t> saves;
};

}  // namespace

TEST_CASE("saves by number come after the multiples of it, and need nobody's clock", "[save_interval]") {
  Training job{{.steps = 3}};
  CHECK(job.interval.is_by_steps_alone());
  for (int i = 0; i < 10; ++i) job.step(1s);
  CHECK(job.saves == std::vector<std::uint64_t>{3, 6, 9});
}

TEST_CASE("saves by time come when so much time has passed since the last one began, or since the job did", "[save_interval]") {
  Training job{{.time = 10s}};
  CHECK_FALSE(job.interval.is_by_steps_alone());
  for (int i = 0; i < 20; ++i) job.step(3s, 2s);
  // 12 s; the save stood still for 2 s, so the next one comes after 3 more steps
  CHECK(job.saves == std::vector<std::uint64_t>{4, 7, 10, 13, 16, 19});
}

TEST_CASE("with both, whichever comes first", "[save_interval]") {
  Training job{{.steps = 5, .time = 10s}};
  for (int i = 0; i < 10; ++i) job.step(4s);
  CHECK(job.saves == std::vector<std::uint64_t>{3, 5, 8, 10});
}

TEST_CASE("by time none is asked for while the one before it is written", "[save_interval]") {
  Training job{{.time = 2s}};
  for (int i = 0; i < 20; ++i) job.step(1s, 0s, 6);
  CHECK(job.saves == std::vector<std::uint64_t>{2, 8, 14, 20});
}

TEST_CASE("a step that asks for a save while the one before it is written says so, and the save is left out", "[save_interval]") {
  SaveInterval interval{{.steps = 10, .time = 1s}};
  interval.begin(Instant{} + 100s);
  CHECK_FALSE(interval.vote(9, Instant{} + 109s, true));
  CHECK(interval.vote(10, Instant{} + 110s, true));
  CHECK(interval.vote(11, Instant{} + 111s, false));
}

TEST_CASE("a budget alone saves as often as it allows: after a few steps, then as the cost of saves says", "[save_interval]") {
  Training job{{.budget = 0.1}};
  for (int i = 0; i < 60; ++i) job.step(1s, 2s);
  REQUIRE(job.saves.size() == 3);
  CHECK(job.saves[0] == 9);                  // the first vote begins the first step that is measured
  CHECK(job.saves[1] == job.saves[0] + 18);  // 2 s of 20 s
  CHECK(job.saves[2] == job.saves[1] + 18);
  CHECK(job.interval.cost() == Duration{2s});
}

TEST_CASE("a budget puts off saves by number and time, and never brings one forward", "[save_interval]") {
  Training cheap{{.steps = 10, .budget = 0.5}};
  for (int i = 0; i < 40; ++i) cheap.step(1s, 1ms);
  CHECK(cheap.saves == std::vector<std::uint64_t>{10, 20, 30, 40});
  Training dear{{.steps = 10, .budget = 0.1}};
  for (int i = 0; i < 60; ++i) dear.step(1s, 2s);
  CHECK(dear.saves == std::vector<std::uint64_t>{10, 30, 50});
  Training by_time{{.time = 5s, .budget = 0.01}};
  for (int i = 0; i < 200; ++i) by_time.step(1s, 1s);
  REQUIRE(by_time.saves.size() == 2);
  CHECK(by_time.saves[1] - by_time.saves[0] == 99);
}

TEST_CASE("what a save costs is how long it stops training, and by how much it slows down the steps beside it", "[save_interval]") {
  Training job{{.steps = 20, .budget = 0.9}};
  for (int i = 0; i < 40; ++i) job.step(1s, 500ms, 4, 100ms);
  REQUIRE(job.saves.size() == 2);
  CHECK(job.interval.cost() == Duration{500ms + 400ms} / 2 + Duration{500ms} / 2);  // the second one has not slowed any step yet
}

TEST_CASE("a new generation keeps what saves cost, and no step of the time between", "[save_interval]") {
  Training job{{.time = 10s, .budget = 0.5}};
  for (int i = 0; i < 12; ++i) job.step(1s, 1s, 2);
  const auto cost = job.interval.cost();
  REQUIRE(cost == Duration{1s});
  job.now += 100s;  // recovery
  job.writing = 0;
  job.interval.begin(job.now);
  CHECK(job.step(1s, 1s));  // more than 10 s since the last save
  CHECK(job.interval.cost() == cost);
}

TEST_CASE("time counts from the checkpoint that a state is from", "[save_interval]") {
  Training job{{.time = 10s}};
  for (int i = 0; i < 9; ++i) job.step(1s);
  job.interval.restored(job.now);
  for (int i = 0; i < 11; ++i) job.step(1s);
  CHECK(job.saves == std::vector<std::uint64_t>{19});
}

TEST_CASE("whatever steps and saves take, saves cost no more of the time than the budget, and not much less", "[save_interval]") {
  for_all_seeds(300, [](Rng& rng) {
    const double budget = 0.005 + static_cast<double>(rng.below(1000)) / 10'000;
    Training job{{.budget = budget}};
    const Instant begun = job.now;
    Duration cost{};
    const auto base = Duration{1'000'000 + static_cast<std::int64_t>(rng.below(1'000'000'000))};
    for (int i = 0; i < 20'000; ++i) {
      const Duration step = base + base / 10 * static_cast<std::int64_t>(rng.below(3)) / 10;
      const Duration stall = base / 4 + base / 16 * static_cast<std::int64_t>(rng.below(8)), slower = base / 20;
      const bool slowed = job.writing > 0 || job.copies;
      if (job.step(step, stall, 1 + static_cast<unsigned>(rng.below(10)), slower)) cost += stall;
      if (slowed) cost += slower;
    }
    const double share = std::chrono::duration<double>(cost) / std::chrono::duration<double>(job.now - begun);
    INFO("budget " << budget << ", came to " << share << " in " << job.saves.size() << " saves");
    CHECK(share <= budget * 1.1);
    CHECK(job.saves.size() >= 3);
    CHECK(share >= budget * 0.5);
  });
}

}  // namespace elrun::test
