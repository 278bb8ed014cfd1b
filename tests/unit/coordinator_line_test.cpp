#include "launcher/supervise/coordinator_line.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("a line that is up serves once the coordinator has confirmed the generation", "[line]") {
  CoordinatorLine line;
  CHECK_FALSE(line.can_report());
  line.up(Instant{}, {});
  CHECK(line.is_up());
  CHECK_FALSE(line.can_report());
  line.serves(true);
  CHECK(line.can_report());
  line.down({Code::unreachable, Remedy::retry, "refused"}, "host:1");
  CHECK_FALSE(line.is_up());
  CHECK(line.waiting_for() == "the coordinator at host:1: refused");
  line.up(Instant{}, {});
  CHECK_FALSE(line.can_report());
  CHECK(line.waiting_for().empty());
}

TEST_CASE("only a coordinator that served can fall silent, and its address is named once", "[line]") {
  CoordinatorLine line;
  const Failure silent{Code::deadline_passed, Remedy::retry, "host:1: nothing came for 15 s"};
  line.up(Instant{}, {});
  line.down(silent, "host:1");
  CHECK_FALSE(line.fell_silent());
  CHECK(line.waiting_for() == "the coordinator at host:1: nothing came for 15 s");
  line.up(Instant{}, {}), line.serves(false), line.down(silent, "host:1");
  CHECK(line.fell_silent());
  line.up(Instant{}, {}), line.serves(false), line.down({Code::unreachable, Remedy::retry, "reset"}, "host:1");
  CHECK_FALSE(line.fell_silent());
}

TEST_CASE("a line that was short gives no new grace, unless a generation began on it", "[line]") {
  Timeouts timeouts;
  SECTION("of less than two leases") { timeouts.lease = 10s; }
  SECTION("of less than a heartbeat limit") { timeouts.heartbeat_limit = 20s; }
  CHECK(timeouts.coordinator_stays() == 20s);
  const Duration whole = GENERATE(as<Duration>{}, 600s, 50s);
  CoordinatorLine line;
  const Instant up{1000s};
  line.up(up, {});
  CHECK(line.grace(up + 1s, whole, timeouts) == whole);
  line.up(up, 40s);
  CHECK(line.grace(up + timeouts.coordinator_stays() - 1ns, whole, timeouts) == 40s);
  CHECK(line.grace(up + timeouts.coordinator_stays(), whole, timeouts) == whole);
  line.serves(false);
  CHECK(line.grace(up + 1s, whole, timeouts) == 40s);
  // Another coordinator needs some time to come: once in a wait it has that.
  line.up(up, Duration{0});
  CHECK(line.grace(up + 1s, whole, timeouts) == 30s);
  line.up(up, 3s);
  CHECK(line.grace(up + 1s, whole, timeouts) == 3s);
  CHECK(line.grace(up + timeouts.coordinator_stays(), whole, timeouts) == whole);
  line.up(up, 3s);
  CHECK(line.grace(up + 1s, whole, timeouts) == 30s);
  line.serves(true);
  CHECK(line.grace(up + 1s, whole, timeouts) == whole);
}

TEST_CASE("a reason to wait is news once", "[line]") {
  CoordinatorLine line;
  CHECK(line.waits_for("1 of 2 nodes"));
  CHECK_FALSE(line.waits_for("1 of 2 nodes"));
  CHECK(line.waits_for("2 of 3 nodes"));
  line.note_running(7), line.note_running(5);
  CHECK(line.newest_running() == 7);
}

TEST_CASE("what the coordinator knows is not told again, until another one may have come", "[line]") {
  CoordinatorLine line;
  WorkersStarting starting;
  CHECK_FALSE(line.must_tell_starting(starting));  // nobody, and it never heard of anybody
  starting.count = 2;
  CHECK(line.must_tell_starting(starting));
  CHECK_FALSE(line.must_tell_starting(starting));
  line.note_job_reported();
  line.forget_reports();
  CHECK_FALSE(line.knows_job());
  CHECK(line.must_tell_starting(starting));
  starting.count = 0;
  CHECK(line.must_tell_starting(starting));
  CHECK_FALSE(line.must_tell_starting(starting));
  line.note_job_reported();
  line.serves(false);
  CHECK(line.knows_job());
  line.serves(true);
  CHECK_FALSE(line.knows_job());
}
