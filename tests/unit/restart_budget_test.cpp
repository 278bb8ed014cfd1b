#include "rendezvous/round/restart_budget.hpp"

#include <csignal>

#include "tests/support/catch.hpp"

namespace elrun::test::restart_budget {
namespace {

using Catch::Matchers::Contains;

constexpr std::int32_t not_given = -1;
constexpr Duration late = 1min;  // after the start: no failure at the start
constexpr Instant now{1000s};

}  // namespace

TEST_CASE("the limit is as given; without that 3 for a Job and 0 for any other program", "[restart_budget]") {
  RestartBudget budget;
  CHECK(budget.limit(not_given) == 0);
  CHECK(budget.limit(5) == 5);
  budget.note_job(false);
  CHECK(budget.limit(not_given) == 0);
  budget.note_job();
  CHECK(budget.limit(not_given) == 3);
  CHECK(budget.limit(0) == 0);
}

TEST_CASE("each failure of a plain program costs a restart, until none is left", "[restart_budget]") {
  RestartBudget budget;
  CHECK(budget.decided(1));
  for (const char* note : {"; restart 1 of 2", "; restart 2 of 2"}) {
    const auto charge = budget.charge(3, 2, now);
    CHECK_FALSE(charge.exhausted);
    CHECK(charge.note == note);
  }
  CHECK(budget.charge(3, 2, now).exhausted == "all 2 restarts (--max_restarts) are used");
  CHECK(RestartBudget{}.charge(3, 0, now).exhausted == "no restart is allowed (--max_restarts)");
}

TEST_CASE("a failure of a Job is free if a step was decided for the first time since the last one", "[restart_budget]") {
  RestartBudget budget;
  budget.note_job();
  CHECK(budget.decided(7));
  CHECK(budget.charge(3, not_given, now).note == "; this restart is free: there was progress since the last one");
  CHECK(budget.counts().used == 0);
  CHECK_FALSE(budget.decided(7));  // again: no progress
  CHECK_FALSE(budget.decided(6));
  CHECK(budget.newest_step() == 7);
  CHECK(budget.charge(3, not_given, now).note == "; restart 1 of 3");
  SECTION("an explicit 0 means none") {
    CHECK(budget.decided(8));
    CHECK(budget.charge(3, 0, now).exhausted);
  }
  SECTION("a wrong configuration is not restarted") {
    CHECK(budget.decided(8));
    CHECK(budget.charge(exit_code_configuration, not_given, now).exhausted == "a wrong configuration is not restarted");
  }
  SECTION("nor is a job whose newest checkpoint is too old; another program may use that code") {
    CHECK(budget.decided(8));
    CHECK_THAT(*budget.charge(exit_code_checkpoint_too_old, not_given, now).exhausted, Contains("could save no checkpoint for too long"));
    CHECK(budget.counts().used == 1);
    CHECK_FALSE(RestartBudget{}.charge(exit_code_checkpoint_too_old, 1, now).exhausted);
  }
}

TEST_CASE("a worker that fails in what it began in the generation before belongs to that one's failure", "[restart_budget]") {
  constexpr const char* belongs = "; it costs no restart: it belongs to the failure before";
  RestartBudget budget;
  budget.note_job();
  budget.generation_began();
  CHECK_FALSE(budget.belongs_to_last_failure(3, true, now));  // nothing failed before
  CHECK(budget.charge(3, 1, now, true).note == "; restart 1 of 1");
  for (int i = 0; i < 3; ++i) {  // one after the other
    budget.generation_began();
    CHECK_FALSE(budget.belongs_to_last_failure(3, false, now));
    CHECK(budget.belongs_to_last_failure(3, true, now));
    const auto charge = budget.charge(3, 1, now, true);
    CHECK_FALSE(charge.exhausted);
    CHECK(charge.note == belongs);
    CHECK(budget.counts().used == 1);
  }
  budget.generation_began();
  SECTION("one that had come back is a failure of its own") { CHECK(budget.charge(3, 1, now).exhausted); }
  SECTION("and so is the failure of one that had not, where the generation before ended well") {
    budget.generation_began();
    CHECK(budget.charge(3, 1, now, true).exhausted);
  }
  SECTION("what is not restarted is not restarted") {
    CHECK(budget.charge(exit_code_configuration, 1, now, true).exhausted);
    CHECK(budget.charge(exit_code_checkpoint_too_old, 1, now, true).exhausted);
  }
  SECTION("a free one leaves the progress for the next") {
    CHECK(budget.decided(7));
    CHECK(budget.charge(3, 1, now, true).note == belongs);
    budget.generation_began();
    CHECK(budget.charge(3, 1, now).note == "; this restart is free: there was progress since the last one");
  }
}

TEST_CASE("workers that are killed within a second of a failure belong to it; one that is killed at each start pays", "[restart_budget]") {
  constexpr std::int32_t killed = 128 + SIGKILL;
  RestartBudget budget;
  CHECK_FALSE(budget.belongs_to_last_failure(killed, false, now));
  budget.note_job();
  CHECK(budget.charge(3, 2, now).note == "; restart 1 of 2");
  CHECK_FALSE(budget.belongs_to_last_failure(3, false, now + 1ms));
  for (const Duration after : {1ms, 500ms, 999ms}) {
    CHECK(budget.charge(killed, 2, now + after).note == "; it costs no restart: it belongs to the failure before");
    CHECK(budget.counts().used == 1);
  }
  CHECK(budget.charge(killed, 2, now + 1s).note == "; restart 2 of 2");
  CHECK_FALSE(budget.charge(killed, 2, now + 1900ms).exhausted);
  CHECK(budget.charge(killed, 2, now + 2s).exhausted);
  SECTION("not of a plain program") {
    RestartBudget plain;
    CHECK(plain.charge(killed, 2, now).note == "; restart 1 of 2");
    CHECK(plain.charge(killed, 2, now + 1ms).note == "; restart 2 of 2");
  }
}

TEST_CASE("a failure that a lost node explains is given back, once", "[restart_budget]") {
  RestartBudget budget;
  CHECK_FALSE(budget.refund());
  for (int i = 0; i < 3; ++i) budget.note_failure(3, 1s, now);
  REQUIRE_FALSE(budget.charge(3, 2, now).exhausted);
  CHECK(budget.pause_until() > now);
  CHECK(budget.refund());
  CHECK(budget.counts().used == 0);
  CHECK(budget.row() == 0);
  CHECK(budget.pause_until() == Instant{});
  CHECK_FALSE(budget.refund());
  SECTION("but not one of an earlier generation") {
    REQUIRE_FALSE(budget.charge(3, 2, now).exhausted);
    budget.generation_began();
    CHECK_FALSE(budget.refund());
    CHECK(budget.counts().used == 1);
  }
}

TEST_CASE("failures alike, soon after the start, back off", "[restart_budget]") {
  RestartBudget budget;
  budget.note_failure(3, 1s, now);
  CHECK(budget.pause_until() == Instant{});
  for (const Duration pause : {1s, 2s, 4s, 8s, 16s, 16s}) {
    budget.note_failure(3, 1s, now);
    CHECK(budget.pause_until() == now + pause);
  }
  CHECK(budget.row() == 7);
  CHECK(budget.row_exit_code() == 3);
  CHECK_THAT(budget.charge(3, 9, now).note, Contains("after a pause of 16 s, for it failed alike 7 times soon after its start"));
  SECTION("another exit code begins another row") {
    budget.note_failure(4, 1s, now);
    CHECK(budget.row() == 1);
  }
  SECTION("a late failure ends the row") {
    budget.note_failure(3, late, now);
    CHECK(budget.row() == 0);
  }
  SECTION("a worker that was killed from outside did not fail by itself") {
    budget.note_failure(128 + SIGKILL, 1s, now);
    CHECK(budget.row() == 0);
  }
  SECTION("a decided step ends the row") {
    CHECK(budget.decided(1));
    CHECK(budget.row() == 0);
  }
}

TEST_CASE("what another coordinator counted is counted on from, as far as it is believed", "[restart_budget]") {
  RestartBudget budget;
  budget.count_on_from({.generations = 9, .used = 2}, not_given, 100);
  CHECK(budget.counts() == RestartCounts{.generations = 9, .used = 2});
  budget.count_on_from({.generations = 4, .used = 1}, not_given, 100);
  CHECK(budget.counts() == RestartCounts{.generations = 9, .used = 2});
  budget.count_on_from({.generations = 1000, .used = 1000}, not_given, 100);
  CHECK(budget.counts() == RestartCounts{.generations = 100, .used = 3});
  budget.generation_ended(EndCause::growth);
  budget.generation_ended(EndCause::leave);
  CHECK(budget.counts().generations == 100);
  budget.generation_ended(EndCause::loss);
  CHECK(budget.counts().generations == 101);
}

}  // namespace elrun::test::restart_budget
