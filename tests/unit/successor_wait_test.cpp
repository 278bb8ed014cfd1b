#include "launcher/supervise/successor_wait.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::successor_wait {
namespace {

using launcher::SuccessorWait;
constexpr LocalRank worker{1}, other{2};
Instant at(Duration since_start) { return Instant{} + since_start; }

/// Its newest start took `start`, and steps 1 to 3, which were decided in this generation, took `step` each.
SuccessorWait measured(Duration start, Duration step) {
  SuccessorWait wait{2s};
  wait.starts(worker, at(0s));
  wait.has_started(worker, at(start));
  for (const unsigned number : {1u, 2u, 3u}) wait.decided(number, at(10s + step * number));
  return wait;
}

}  // namespace

TEST_CASE("a node waits where a start takes less than the smaller world would lose in one step", "[successor-wait]") {
  const SuccessorWait wait = measured(30ms, 300ms);
  CHECK(wait.at_most(1, 2) == 300ms);  // one worker does the work of two
  CHECK(wait.at_most(1, 4) == 100ms);
  CHECK(wait.at_most(3, 4) == 900ms);
  CHECK(wait.at_most(1, 10) == Duration{300ms} / 9);
  CHECK(wait.at_most(1, 11) == 0s);  // 30 ms: no gain
  CHECK(wait.at_most(1, 12) == 0s);
}

TEST_CASE("nobody waits where all or none died", "[successor-wait]") {
  const SuccessorWait wait = measured(30ms, 300ms);
  CHECK(wait.at_most(0, 4) == 0s);
  CHECK(wait.at_most(4, 4) == 0s);
}

TEST_CASE("a wait has an end, however long a step took", "[successor-wait]") {
  CHECK(measured(1s, 1h).at_most(1, 2) == 2s);
  CHECK(measured(2s, 1h).at_most(1, 2) == 0s);
}

TEST_CASE("nobody waits before the times of a step and of a start are known", "[successor-wait]") {
  SuccessorWait wait{2s};
  wait.decided(1, at(1s));
  wait.decided(2, at(2s));
  CHECK(wait.at_most(1, 2) == 0s);
  wait.starts(worker, at(3s));
  CHECK(wait.at_most(1, 2) == 0s);
  wait.has_started(worker, at(3s + 10ms));
  CHECK(wait.at_most(1, 2) == 1s);
  SuccessorWait one_step{2s};
  one_step.starts(worker, at(0s));
  one_step.has_started(worker, at(10ms));
  one_step.decided(1, at(1s));
  CHECK(one_step.at_most(1, 2) == 0s);
}

TEST_CASE("the time between the last step of a generation and the first of the next is no step", "[successor-wait]") {
  SuccessorWait wait = measured(10ms, 100ms);
  wait.begin_generation();
  wait.decided(4, at(60s));
  CHECK(wait.at_most(1, 2) == 100ms);
  wait.decided(5, at(60s + 50ms));
  CHECK(wait.at_most(1, 2) == 50ms);
}

TEST_CASE("one long step, with a save or an evaluation, says nothing of the next", "[successor-wait]") {
  SuccessorWait wait = measured(10ms, 100ms);
  wait.decided(4, at(60s));
  CHECK(wait.at_most(1, 2) == 100ms);
  wait.decided(5, at(110s));
  CHECK(wait.at_most(1, 2) == 2s);  // two are the rule
}

TEST_CASE("nobody waits after a generation without a new step: a worker may fail in its first one, again and again", "[successor-wait]") {
  SuccessorWait wait = measured(10ms, 100ms);
  wait.begin_generation();
  CHECK(wait.at_most(1, 2) == 0s);
  wait.decided(2, at(60s));  // once more, as is step 3
  wait.decided(3, at(60s + 100ms));
  CHECK(wait.at_most(1, 2) == 0s);
  wait.decided(4, at(60s + 200ms));
  CHECK(wait.at_most(1, 2) == 100ms);
}

TEST_CASE("the newest start counts, and one that failed says that nobody knows", "[successor-wait]") {
  SuccessorWait wait = measured(10ms, 100ms);
  SECTION("it took longer") {
    wait.starts(worker, at(20s));
    wait.has_started(worker, at(20s + 100ms));
    CHECK(wait.at_most(1, 2) == 0s);
  }
  SECTION("it ended before it had started") {
    wait.starts(worker, at(20s));
    wait.ended(worker);
    CHECK(wait.at_most(1, 2) == 0s);
  }
  SECTION("the end of one that had started says nothing") {
    wait.ended(worker);
    CHECK(wait.at_most(1, 2) == 100ms);
  }
  SECTION("nor does a start that is told twice") {
    wait.has_started(worker, at(50s));
    CHECK(wait.at_most(1, 2) == 100ms);
  }
}

TEST_CASE("nobody waits while another start is under way", "[successor-wait]") {
  SuccessorWait wait = measured(10ms, 100ms);
  wait.starts(other, at(20s));
  CHECK(wait.at_most(1, 2) == 0s);
  wait.has_started(other, at(20s + 20ms));
  CHECK(wait.at_most(1, 2) == 100ms);
}

}  // namespace elrun::test::successor_wait
