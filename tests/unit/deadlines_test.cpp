#include "launcher/supervise/deadlines.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

Instant at(Duration d) { return Instant{} + d; }

}  // namespace

TEST_CASE("a wait is over at its deadline, once", "[deadlines]") {
  Deadlines deadlines;
  CHECK_FALSE(deadlines.next(false));
  deadlines.set(Wait::kill, at(5s));
  CHECK(deadlines.is_set(Wait::kill));
  CHECK_FALSE(deadlines.take(Wait::kill, at(4s)));
  CHECK(deadlines.take(Wait::kill, at(5s)));
  CHECK_FALSE(deadlines.take(Wait::kill, at(6s)));
  CHECK_FALSE(deadlines.is_set(Wait::kill));
}

TEST_CASE("the next deadline is the earliest, and a late report shows no stall", "[deadlines]") {
  Deadlines deadlines;
  deadlines.set(Wait::coordinator, at(9s));
  deadlines.set(Wait::leave, at(7s));
  deadlines.set(Wait::tell_starting, at(3s));
  CHECK(deadlines.next(false) == at(3s));
  CHECK(deadlines.next(true) == at(7s));
  deadlines.clear(Wait::leave);
  CHECK(deadlines.next(true) == at(9s));
}

TEST_CASE("after a stall only waits that blame others last longer", "[deadlines]") {
  Deadlines deadlines;
  for (const WaitRule& rule : wait_rules) deadlines.set(rule.wait, at(10s));
  deadlines.excuse(30s, at(21s));
  for (const WaitRule& rule : wait_rules) {
    CAPTURE(static_cast<int>(rule.wait));
    CHECK(deadlines.at(rule.wait) == at(rule.blames_others ? 40s : 10s));
    CHECK(rule.blames_others ==
          (rule.wait == Wait::join || rule.wait == Wait::coordinator || rule.wait == Wait::acknowledge || rule.wait == Wait::broken_line));
  }
  deadlines.excuse(1s, at(60s));
  CHECK(deadlines.at(Wait::join) == at(60s));
  CHECK(deadlines.at(Wait::kill) == at(10s));
}

TEST_CASE("an agent that was stopped compensates for it; one that is always late does not", "[deadlines]") {
  StallCompensation stall;
  CHECK_FALSE(stall.stalled(std::nullopt, at(0s), at(50s)));    // nothing was waited for
  CHECK_FALSE(stall.stalled(at(10s), at(9s), at(10s + 99ms)));  // a busy machine
  CHECK(stall.stalled(at(10s), at(9s), at(10s + 100ms)) == 1100ms);
  CHECK_FALSE(stall.stalled(at(12s), at(11s), at(12s + 500ms)));  // again, and short
  CHECK(stall.stalled(at(15s), at(14s), at(16s)) == 2s);          // again, and long
  CHECK(stall.stalled(at(26s), at(25s), at(26s + 200ms)) == 1200ms);
}
