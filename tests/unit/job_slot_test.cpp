// What goes with a slot and a step, each without a job: OpenSlot, ProgramTimeout, Departure, UpdateRecord and StopRequest.

#include "lib/job/commit/stop_request.hpp"
#include "lib/job/commit/update_record.hpp"
#include "lib/job/departure.hpp"
#include "lib/job/open_slot.hpp"
#include "lib/job/program_timeout.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

Slot& begin(OpenSlot& open, std::uint32_t index = 3) { return open.begin(nullptr, 1, index, {}); }

Place place_alone() {
  Place place;
  place.membership = {{1, {}}, Rank{0}, WorldSize{1}};
  return place;
}

JoinPeers nobody() {
  return [](Session&) -> Result<std::unique_ptr<Peers>> { return std::unique_ptr<Peers>{}; };
}

}  // namespace

// ---- OpenSlot

TEST_CASE("a slot is reported once, while it is open", "[open_slot]") {
  OpenSlot open;
  CHECK_FALSE(open.is_open());
  const Slot& slot = begin(open);
  CHECK(open.index() == 3);
  CHECK_FALSE(open.has_reported());
  open.report(slot, 0.5f, 7);
  CHECK_THROWS_WITH(open.report(slot, 0.5f, 7), Catch::Contains("a slot was reported twice"));
  open.end();
  CHECK_THROWS_WITH(open.report(slot, 0.5f, 7), Catch::Contains("a slot was reported after its end"));
  CHECK(open.has_reported());  // what it said stays
  CHECK(open.loss() == 0.5f);
  CHECK(open.tokens() == 7);
}

TEST_CASE("a slot that was moved out of the loop is over when the next one begins", "[open_slot]") {
  OpenSlot open;
  const Slot kept = std::move(begin(open));
  const Slot& next = begin(open, 4);
  CHECK(kept.index() == 3);
  CHECK_THROWS_WITH(open.report(kept, 1, 1), Catch::Contains("a slot was reported after its end"));
  open.report(next, 1, 1);
}

TEST_CASE("sums are of an evaluation's slot alone, and begin anew with the next one", "[open_slot]") {
  OpenSlot open;
  const Slot& slot = begin(open);
  CHECK_THROWS_WITH(open.add(slot, "hits", 1, false), Catch::Contains("add() is for the slots of evaluate()"));
  open.add(slot, "hits", 1, true);
  open.add(slot, "hits", 2, true);
  CHECK(open.sums().find("hits")->second == 3);
  begin(open);
  CHECK(open.sums().empty());
}

TEST_CASE("a sum has a short name, a finite value, and not too many beside it", "[open_slot]") {
  OpenSlot open;
  const Slot& slot = begin(open);
  CHECK_THROWS_WITH(open.add(slot, "", 1, true), Catch::Contains("a name has 1 to 64 bytes, and not 0"));
  CHECK_THROWS_WITH(open.add(slot, std::string(65, 'x'), 1, true), Catch::Contains("and not 65"));
  CHECK_THROWS_WITH(open.add(slot, "hits", std::numeric_limits<double>::infinity(), true), Catch::Contains("a sum is of finite numbers"));
  for (std::size_t i = 0; i < evaluation_sums_max; ++i) open.add(slot, std::to_string(i), 1, true);
  CHECK_THROWS_WITH(open.add(slot, "one more", 1, true), Catch::Contains("an evaluation has 64 sums at most"));
  open.add(slot, "0", 1, true);  // one that is there
  open.end();
  CHECK_THROWS_WITH(open.add(slot, "0", 1, true), Catch::Contains("add() is called after the slot's end"));
}

// ---- JobWorld

TEST_CASE("a world that this host lacks the means for ends the worker; one whose peers are missing can be made again", "[job_world]") {
  Place place = place_alone();
  place.membership.world = WorldSize{2};
  TestSession session{place, nullptr};
  const auto fails = [](Code code, Remedy remedy) {
    return [=](Session&) -> Result<std::unique_ptr<Peers>> { return Failure{code, remedy, "no watch for a descriptor is left"}; };
  };
  JobWorld lacking{session, fails(Code::exhausted, Remedy::fix_config)};
  CHECK_THROWS_WITH(lacking.join(), Catch::Contains("no watch for a descriptor is left"));
  JobWorld retried{session, fails(Code::exhausted, Remedy::retry)};
  CHECK_FALSE(retried.join().ok());
  JobWorld alone{session, fails(Code::deadline_passed, Remedy::rejoin)};
  CHECK_FALSE(alone.join().ok());
}

// ---- ProgramTimeout

TEST_CASE("others wait for a program as long as it is slow, and an hour for its first slot", "[program_timeout]") {
  ManualClock clock;
  TestSession session{place_alone(), nullptr};
  JobWorld world{session, nobody()};
  ProgramTimeout program_timeout{clock, session, world};
  program_timeout.begin_slots();
  CHECK(world.timeout() == 1h);
  const Instant begun = clock.now();
  clock.advance(200s);
  program_timeout.ended_slot(begun);
  CHECK(session.within == 1600s);   // the agent: eight times the longest absence,
  CHECK(world.timeout() == 1600s);  // and the peers likewise
  program_timeout.begin_slots();
  CHECK(world.timeout() == 1600s);
  SECTION("a shorter absence changes nothing") {
    session.within = {};
    const Instant later = clock.now();
    clock.advance(100s);
    program_timeout.ended(later);
    CHECK(session.within == Duration{});
    CHECK(world.timeout() == 1600s);
  }
  SECTION("while state travels others are waited for as long as it may take") {
    program_timeout.begin_transfer(5000s);
    program_timeout.begin_slots();
    CHECK(world.timeout() == 5000s);
    program_timeout.end_transfer();
    CHECK(world.timeout() == 1600s);
    program_timeout.begin_transfer(10s);
    CHECK(world.timeout() == 1600s);
  }
  SECTION("the last slot's time is known") {
    CHECK(program_timeout.last_slot() == 200s);
    const Instant later = clock.now();
    clock.advance(3s);
    program_timeout.ended(later);  // an evaluation's
    CHECK(program_timeout.last_slot() == 200s);
    program_timeout.ended_slot(later);
    CHECK(program_timeout.last_slot() == 3s);
  }
  SECTION("a program that runs again in this process is as slow as before") {
    world.set_timeout(exchange_timeout_min);  // as a new world is
    ProgramTimeout again{clock, session, world};
    again.continue_from(program_timeout);
    CHECK(world.timeout() == 1600s);
    again.begin_slots();
    CHECK(world.timeout() == 1600s);  // it is no first slot
  }
}

TEST_CASE("what an evaluation or a save took says nothing of a slot, unless it was longer than an hour allows", "[program_timeout]") {
  ManualClock clock;
  TestSession session{place_alone(), nullptr};
  JobWorld world{session, nobody()};
  ProgramTimeout program_timeout{clock, session, world};
  for (const Duration took : {Duration{2min}, Duration{10min}}) {
    const Instant begun = clock.now();
    clock.advance(took);
    program_timeout.ended(begun);
    CHECK(world.timeout() == std::max<Duration>(1h, 8 * took));  // in a step, its slots come next
    program_timeout.begin_slots();
    CHECK(world.timeout() == std::max<Duration>(1h, 8 * took));
  }
}

TEST_CASE("exchanges wait ten minutes at least, however fast the program is", "[program_timeout]") {
  ManualClock clock;
  TestSession session{place_alone(), nullptr};
  JobWorld world{session, nobody()};
  ProgramTimeout program_timeout{clock, session, world};
  const Instant begun = clock.now();
  clock.advance(1s);
  program_timeout.ended_slot(begun);
  CHECK(session.within == 8s);
  CHECK(world.timeout() == exchange_timeout_min);
}

// ---- Departure

TEST_CASE("the agent of a node that leaves is told once in a generation that the job can go on without it", "[departure]") {
  TestSession session{place_alone(), nullptr};
  Departure departure{session};
  departure.tell_agent();
  CHECK(session.ready_at.empty());  // nobody asked
  session.leaves_at = 0;
  CHECK(departure.is_unreported());
  CHECK_FALSE(departure.is_reported());
  departure.tell_agent();
  departure.tell_agent();
  CHECK(session.ready_at.size() == 1);
  CHECK_FALSE(departure.is_unreported());
  CHECK(departure.is_reported());
  departure.begin_generation();
  CHECK(departure.is_unreported());
  CHECK_FALSE(departure.is_reported());
}

TEST_CASE("that a member leaves is acted on once, and forgotten with the generation", "[departure]") {
  TestSession session{place_alone(), nullptr};
  Departure departure{session};
  CHECK_FALSE(departure.take_member_leaves());
  departure.set_member_leaves(true);
  CHECK(departure.member_leaves());
  SECTION("taken") {
    CHECK(departure.take_member_leaves());
    CHECK_FALSE(departure.take_member_leaves());
  }
  SECTION("another generation") {
    departure.begin_generation();
    CHECK_FALSE(departure.member_leaves());
  }
}

// ---- UpdateRecord

TEST_CASE("a vote says what was passed, what was remembered of the step, and what was tried first", "[update_record]") {
  const UpdateOptions first{.lr = 0.5f}, second{.lr = 0.25f};
  UpdateRecord record;
  record.pass(4, Sgd{}, first, true);
  CHECK_FALSE(record.report(4).passed.known());  // it did not vote yet
  record.vote();
  CHECK(record.report(4).passed == values_of(Sgd{}, first));
  CHECK_FALSE(record.report(4).remembered.known());
  record.pass(4, Sgd{}, second, true);  // the world was lost, and the step is tried again with another value
  record.vote();
  CHECK(record.report(4).passed == values_of(Sgd{}, second));
  CHECK(record.report(4).tried == values_of(Sgd{}, first));
  record.decided(4);
  CHECK(record.report(4).remembered == values_of(Sgd{}, second));
  CHECK(record.options().lr == 0.25f);
}

TEST_CASE("after a checkpoint, values of step 0 that the last step did not have are doubted once", "[update_record]") {
  const auto record_after = [](float lr_of_0, float lr_of_8, float lr_of_9) {
    UpdateRecord record;
    record.memory().remember(0, values_of(Sgd{}, {.lr = lr_of_0}));
    record.memory().remember(8, values_of(Sgd{}, {.lr = lr_of_8}));
    record.set_from_checkpoint(true);
    record.pass(9, Sgd{}, {.lr = lr_of_9}, true);
    record.vote();
    return record;
  };
  UpdateRecord suspect = record_after(0.5f, 0.25f, 0.5f);
  const auto doubt = suspect.take_doubt(9);
  REQUIRE(doubt.has_value());
  CHECK_THAT(*doubt, Catch::Contains("step 9 is the first one after the checkpoint") && Catch::Contains("job.state(name, variable)"));
  CHECK_FALSE(suspect.take_doubt(9).has_value());
  CHECK_FALSE(record_after(0.5f, 0.25f, 0.125f).take_doubt(9).has_value());  // a schedule goes on
  CHECK_FALSE(record_after(0.5f, 0.5f, 0.5f).take_doubt(9).has_value());     // a constant
  UpdateRecord running = record_after(0.5f, 0.25f, 0.5f);
  running.set_from_checkpoint(false);
  CHECK_FALSE(running.take_doubt(9).has_value());
}

// ---- StopRequest

TEST_CASE("an end that was asked for between steps stays, and one in a revoked step is forgotten", "[stop_request]") {
  StopRequest stop;
  SECTION("in the step") {
    stop.keep();
    stop.ask();
    CHECK(stop.is_asked());
    stop.put_back();
    CHECK_FALSE(stop.is_asked());
  }
  SECTION("between steps") {
    stop.ask();
    stop.keep();
    stop.put_back();
    CHECK(stop.is_asked());
  }
  CHECK_FALSE(stop.is_decided());
}

TEST_CASE("a decided end answers the request, and a state from elsewhere brings its own", "[stop_request]") {
  StopRequest stop;
  stop.ask();
  stop.decide();
  CHECK(stop.is_decided());
  CHECK_FALSE(stop.is_asked());
  stop.set(true, false);
  CHECK(stop.is_asked());
  CHECK_FALSE(stop.is_decided());
}

}  // namespace elrun::test
