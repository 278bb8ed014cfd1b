#include "lib/job/times_spent.hpp"

#include <cstdint>
#include <vector>

#include "tests/support/catch.hpp"

using namespace elrun;

namespace {
constexpr Instant start{100s};
Instant at(Duration since_start) { return start + since_start; }
}  // namespace

TEST_CASE("a rank says with a step where its time went since the last one", "[job][ledger]") {
  TimesSpent times;
  times.connected(at(1s), at(3s));
  times.ready(at(4s), 0s);
  times.begin_step(at(5s));
  CHECK(times.decided(at(7s), 0s) == StepTimes{.step = 2s, .restore = 1s, .connect = 2s});
  times.saved(at(8s), at(9s), 0s);
  times.begin_step(at(9s));
  CHECK(times.decided(at(10s), 0s) == StepTimes{.step = 1s, .saves = 1s});
  SECTION("nothing of a generation that is over is said in the next one, nor is a step that began there") {
    times.begin_step(at(11s));
    times.saved(at(11s), at(12s), 0s);
    times.begin_generation();
    CHECK(times.decided(at(20s), 0s) == StepTimes{});
  }
  SECTION("what is left at the end are saves") {
    times.saved(at(11s), at(12s), 0s);
    CHECK(times.left() == StepTimes{.saves = 1s});
    CHECK(times.left() == StepTimes{});
  }
}

TEST_CASE("a rank's own time is what it does not spend in exchanges, since all were together", "[job][ledger]") {
  TimesSpent times;
  times.ready(at(1s), 10s);
  CHECK(times.own(at(4s), 11s) == 2s);
  times.saved(at(4s), at(5s), 12s);
  CHECK(times.own(at(6s), 12s) == 1s);
  CHECK(times.own(at(6s), 30s) == 0s);
}

TEST_CASE("the rank with the longest own time came last, so long after the one before it", "[job][ledger]") {
  struct Heard {
    std::vector<Duration> own;
    std::uint32_t last_rank;
    Duration behind;
  };
  for (const auto& [own, last_rank, behind] :
       {Heard{{5s, 1s, 2s}, 0, 3s}, Heard{{1s, 5s, 2s}, 1, 3s}, Heard{{2s, 1s, 5s}, 2, 3s}, Heard{{1s, 2s}, 1, 1s}}) {
    TimesSpent times;
    for (int step = 0; step < 2; ++step) {  // nothing of a step is left in the next one
      for (const Duration of_a_rank : own) times.hear_own(of_a_rank);
      const StepTimes said = times.decided(at(6s), 0s);
      CHECK(said.last_rank == last_rank);
      CHECK(said.behind == behind);
    }
  }
  SECTION("nobody came last of one, or of two alike") {
    for (const std::vector<Duration>& own : {std::vector<Duration>{}, {3s}, {3s, 3s}}) {
      TimesSpent times;
      for (const Duration of_a_rank : own) times.hear_own(of_a_rank);
      CHECK(times.decided(at(6s), 0s).behind == 0s);
    }
  }
}

TEST_CASE("a step waits for the rank with the longest own time, as long as it is above their mean", "[job][ledger]") {
  TimesSpent times;
  times.begin_step(at(0s));
  for (const Duration own : {Duration{1s}, Duration{1s}, Duration{1s}, Duration{5s}}) times.hear_own(own);
  CHECK(times.decided(at(6s), 0s) == StepTimes{.step = 6s, .waiting = 3s, .behind = 4s, .last_rank = 3});
  SECTION("what another rank says is bounded") {
    times.begin_step(at(6s));
    times.hear_own(Duration::max());
    times.hear_own(Duration::min());
    CHECK(times.decided(at(7s), 0s).waiting == 12h);
  }
}
