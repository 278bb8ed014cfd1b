#include "launcher/report/ledger.hpp"
#include "launcher/report/steady_times.hpp"

#include <algorithm>
#include <utility>

#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

using namespace elrun::launcher;
using Point = Incident::Point;

constexpr Instant start{1000s};

Instant at(Duration since_start) { return start + since_start; }

Duration of(const Ledger& ledger, TimeCause cause) { return ledger.totals()[static_cast<std::size_t>(cause)]; }

/// Two workers, whose first step took 100 ms and was decided 2 s after the start.
Ledger in_its_first_step() {
  Ledger ledger{start};
  ledger.know_steps();
  ledger.world_began(at(500ms), 1, 2);
  ledger.decided(at(2s), 1, {.step = 100ms, .restore = 200ms, .connect = 50ms});
  return ledger;
}

/// A loss in the middle of its second step.
Ledger after_a_loss() {
  Ledger ledger = in_its_first_step();
  ledger.lost(at(2050ms), "rank 1 ended by signal 9");
  ledger.pushed(at(2051ms), "another way to say it");
  ledger.stopped(at(2053ms));
  ledger.world_began(at(2060ms), 2, 1);
  return ledger;
}

}  // namespace

TEST_CASE("the time before the first step is of the rendezvous and the start", "[ledger]") {
  const Ledger ledger = in_its_first_step();
  CHECK(of(ledger, TimeCause::rendezvous) == 500ms);
  CHECK(of(ledger, TimeCause::start) == 1400ms);  // with connecting and restoring
  CHECK(of(ledger, TimeCause::steps) == 100ms);
  CHECK(sum_of(ledger.totals()) == 2s);
}

TEST_CASE("a step's time is cut into what it was spent on", "[ledger]") {
  Ledger ledger = in_its_first_step();
  ledger.decided(at(3s), 2, {.step = 400ms, .waiting = 100ms, .saves = 250ms});
  CHECK(of(ledger, TimeCause::steps) == 400ms);  // 100 of the first
  CHECK(of(ledger, TimeCause::waiting) == 100ms);
  CHECK(of(ledger, TimeCause::saves) == 250ms);
  CHECK(of(ledger, TimeCause::between) == 350ms);
  SECTION("no worker can claim more time than has passed") {
    ledger.decided(at(4s), 3, {.step = 900ms, .waiting = 24h, .saves = 24h, .restore = 24h, .connect = 24h});
    CHECK(of(ledger, TimeCause::waiting) == 1s);
    CHECK(of(ledger, TimeCause::saves) == 350ms);
    CHECK(sum_of(ledger.totals()) == 4s);
  }
  SECTION("of a worker that measures nothing, all of it is the step's") {
    ledger.decided(at(4s), 3, {});
    CHECK(of(ledger, TimeCause::steps) == 1400ms);
  }
  SECTION("a worker that says the same step again tells of a save after it") {
    ledger.decided(at(5s), 2, {.saves = 1500ms});
    CHECK(of(ledger, TimeCause::saves) == 1750ms);
    CHECK(of(ledger, TimeCause::steps) == 400ms);
  }
  SECTION("what is not over yet counts as what it seems to be, and is no part of the totals") {
    CHECK(ledger.totals(at(4s))[static_cast<std::size_t>(TimeCause::steps)] == 1400ms);
    CHECK(of(ledger, TimeCause::steps) == 400ms);
    CHECK(ledger.wall(at(4s)) == 4s);
  }
}

TEST_CASE("an incident's time is of its phases, and its points are in order", "[ledger]") {
  Ledger ledger = after_a_loss();
  ledger.decided(at(2200ms), 2, {.step = 80ms, .restore = 20ms, .connect = 30ms});
  CHECK(of(ledger, TimeCause::again) == 50ms);  // of the step that was cut short
  CHECK(of(ledger, TimeCause::detect) == 1ms);
  CHECK(of(ledger, TimeCause::stop) == 2ms);
  CHECK(of(ledger, TimeCause::agree) == 7ms);
  CHECK(of(ledger, TimeCause::restart) == 10ms);
  CHECK(of(ledger, TimeCause::connect) == 30ms);
  CHECK(of(ledger, TimeCause::restore) == 20ms);
  CHECK(of(ledger, TimeCause::steps) == 140ms);  // 40 of this one: one of two workers is missing
  CHECK(of(ledger, TimeCause::reduced) == 40ms);
  CHECK(sum_of(ledger.totals()) == 2200ms);
  REQUIRE(ledger.incidents().size() == 1);
  const Incident& incident = ledger.incidents().front();
  CHECK(incident.generation == 1);
  CHECK(incident.why == "rank 1 ended by signal 9");
  CHECK(incident.point(Point::last_step) == at(2s));
  CHECK(incident.point(Point::seen) == at(2050ms));
  CHECK(incident.point(Point::pushed) == at(2051ms));
  CHECK(incident.point(Point::stopped) == at(2053ms));
  CHECK(incident.point(Point::agreed) == at(2060ms));
  CHECK(incident.point(Point::connected) == at(2100ms));
  CHECK(incident.point(Point::restored) == at(2120ms));
  CHECK(incident.point(Point::first_step) == at(2200ms));
  CHECK(
      in_words(incident, start) ==
      "generation 1 ended, rank 1 ended by signal 9: last step 2.0 s after the start, seen 50 ms later, pushed 1 ms later, stopped 2 ms later, agreed 7 ms "
      "later, connected 40 ms later, restored 20 ms later, step 2 decided 80 ms later");
}

TEST_CASE("where a loss is silent, no more than a step's length was done for nothing; the rest is its detection", "[ledger]") {
  Ledger ledger = in_its_first_step();
  SECTION("a node that falls silent is told of when the limit has passed") {
    ledger.pushed(at(7050ms), "node b: silent for 5 s");
    CHECK(of(ledger, TimeCause::again) == 100ms);  // as long as the step before
    CHECK(of(ledger, TimeCause::detect) == 4950ms);
    CHECK(sum_of(ledger.totals()) == 7050ms);
    const Incident& incident = ledger.incidents().front();
    CHECK(incident.point(Point::last_step) == at(2s));
    CHECK(incident.point(Point::seen) == at(7050ms));
    CHECK(incident.point(Point::pushed) == at(7050ms));
  }
  SECTION("as is one that a worker sees first") {
    ledger.lost(at(17s), "rank 1 heard nothing from rank 0 for 15 s");
    ledger.pushed(at(17001ms), "");
    CHECK(of(ledger, TimeCause::again) == 100ms);
    CHECK(of(ledger, TimeCause::detect) == 14901ms);
    CHECK(ledger.incidents().front().point(Point::seen) == at(17s));
  }
  SECTION("the newest step is the measure") {
    ledger.decided(at(3s), 2, {.step = 700ms});
    ledger.pushed(at(8s), "silent");
    CHECK(of(ledger, TimeCause::again) == 700ms);
    CHECK(of(ledger, TimeCause::detect) == 4300ms);
  }
  SECTION("a world that grows had nothing to detect") {
    ledger.pushed(at(7s), "the world grows by n", Ledger::Cut::without_failure);
    CHECK(of(ledger, TimeCause::again) == 5s);
    CHECK(of(ledger, TimeCause::detect) == 0s);
  }
  SECTION("of workers that measure nothing, all of it is the step's") {
    ledger = Ledger{start};
    ledger.know_steps();
    ledger.world_began(at(0s), 1, 2);
    ledger.decided(at(1s), 1, {});
    ledger.pushed(at(6s), "silent");
    CHECK(of(ledger, TimeCause::again) == 5s);
  }
}

TEST_CASE("who came last to the ends of steps is counted by rank, with how long after the rank before it", "[ledger]") {
  Ledger ledger{start};
  ledger.world_began(at(0s), 1, 4);
  std::uint64_t step = 0;
  const auto decided = [&](StepTimes times) {
    times.step = 1s;
    ++step;
    ledger.decided(at(step * 1s), step, times);
  };
  decided({.behind = 100ms, .last_rank = 3});
  decided({.behind = 300ms, .last_rank = 0});
  decided({.behind = 250ms, .last_rank = 3});
  decided({});  // not known
  CHECK(ledger.last_ranks().steps() == 3);
  CHECK(ledger.last_ranks().longest(8) == std::vector<LastRank>{{3, 2, 350ms}, {0, 1, 300ms}});
  CHECK(ledger.last_ranks().longest(1) == std::vector<LastRank>{{3, 2, 350ms}});
  CHECK(ledger.last_ranks().of(1) == LastRank{.rank = 1});
  CHECK(
      in_words(ledger.last_ranks(), 3) ==
      "rank 3 finished last in 2 of 3 steps, 350 ms behind the second-to-last; rank 0 finished last in 1 of 3 steps, 300 ms behind the second-to-last");
  SECTION("no worker can claim more time than the step took, nor a rank that is not there") {
    decided({.behind = 24h, .last_rank = 1});
    decided({.behind = 1s, .last_rank = 4});
    CHECK(ledger.last_ranks().of(1) == LastRank{1, 1, 1s});
    CHECK(ledger.last_ranks().steps() == 4);
  }
  SECTION("also of steps that are done again, and in later generations") {
    ledger.pushed(at(4s), "a node was lost");
    ledger.world_began(at(4s), 2, 4);
    ledger.decided(at(5s), 4, {.step = 500ms, .behind = 200ms, .last_rank = 3});
    CHECK(ledger.last_ranks().of(3) == LastRank{3, 3, 550ms});
  }
}

TEST_CASE("a loss within a recovery belongs to the same incident", "[ledger]") {
  Ledger ledger = after_a_loss();
  ledger.lost(at(2100ms), "rank 0 ended as well");
  ledger.pushed(at(2110ms), "");
  CHECK(ledger.incident_count() == 1);
  const Incident& incident = ledger.incidents().front();
  CHECK(incident.point(Point::seen) == at(2050ms));
  CHECK(incident.point(Point::pushed) == at(2110ms));
  CHECK_FALSE(incident.point(Point::stopped));
  CHECK_FALSE(incident.point(Point::agreed));
  CHECK(of(ledger, TimeCause::restart) == 40ms);
}

TEST_CASE("steps that had been decided are done again, and count as that", "[ledger]") {
  Ledger ledger = in_its_first_step();
  for (int step = 2; step <= 4; ++step) ledger.decided(at(2s + (step - 1) * 100ms), static_cast<std::uint64_t>(step), {.step = 100ms});
  CHECK(of(ledger, TimeCause::steps) == 400ms);
  ledger.pushed(at(2300ms), "a node was lost");
  ledger.stopped(at(2300ms));
  ledger.world_began(at(2300ms), 2, 2);
  SECTION("as this agent saw them") {
    ledger.decided(at(2400ms), 3, {.step = 100ms, .waiting = 50ms});
    ledger.decided(at(2500ms), 4, {.step = 100ms});
    CHECK(of(ledger, TimeCause::again) == 200ms);  // all of it, whatever the waits in it
    ledger.decided(at(2600ms), 5, {.step = 100ms});
    CHECK(of(ledger, TimeCause::again) == 200ms);
    CHECK(of(ledger, TimeCause::steps) == 500ms);
  }
  SECTION("as the workers tell an agent that did not see them") {
    ledger.went_on_from(2, 4);
    ledger.decided(at(2400ms), 6, {.step = 100ms});
    CHECK(of(ledger, TimeCause::again) == 100ms);
  }
}

TEST_CASE("an end without a loss cuts no step short", "[ledger]") {
  Ledger ledger = in_its_first_step();
  ledger.job_over(at(3s));
  ledger.finished(at(4s));
  ledger.pushed(at(9s), "late");
  ledger.world_began(at(9s), 7, 2);
  CHECK(of(ledger, TimeCause::end) == 2s);
  CHECK(of(ledger, TimeCause::again) == 0s);
  CHECK(ledger.wall(at(9s)) == 4s);
  CHECK(ledger.incident_count() == 0);
  CHECK(in_words(ledger.totals()) == "4.0 s: rendezvous 500 ms (12.5 %), start 1.4 s (35.0 %), steps 100 ms (2.5 %), end 2.0 s (50.0 %)");
}

TEST_CASE("workers that tell of no steps run a program", "[ledger]") {
  Ledger ledger{start};
  ledger.world_began(at(1s), 1, 2);
  ledger.finished(at(5s));
  CHECK(of(ledger, TimeCause::rendezvous) == 1s);
  ledger = Ledger{start};
  ledger.world_began(at(1s), 1, 2);
  ledger.lost(at(3s), "");
  CHECK(of(ledger, TimeCause::program) == 2s);
  ledger.pushed(at(3s), "");
  ledger.stopped(at(3s));
  ledger.world_began(at(4s), 2, 2);
  ledger.lost(at(9s), "again");
  CHECK(of(ledger, TimeCause::program) == 7s);
  CHECK(of(ledger, TimeCause::restart) == 0s);
  CHECK(ledger.incident_count() == 2);
}

TEST_CASE("as counters, times never fall, and their sum is the wall time at each look", "[ledger]") {
  Ledger ledger = in_its_first_step();
  SteadyTimes steady;
  const auto shown = [&](Instant now, TimeCause cause) { return steady.look(ledger.totals(now))[static_cast<std::size_t>(cause)]; };
  CHECK(shown(at(7s), TimeCause::steps) == 5100ms);  // within a long step
  ledger.pushed(at(7s), "node b: silent for 5 s");
  CHECK(of(ledger, TimeCause::steps) == 100ms);
  CHECK(shown(at(7s), TimeCause::steps) == 5100ms);  // too much, and no way back
  CHECK(sum_of(steady.look(ledger.totals(at(8s)))) == 8s);
  ledger.stopped(at(8s));
  ledger.world_began(at(8s), 2, 2);
  ledger.decided(at(9s), 2, {.step = 1s});
  for (int step = 3; step <= 20; ++step) ledger.decided(at(9s + (step - 2) * 1s), static_cast<std::uint64_t>(step), {.step = 1s});
  CHECK(steady.look(ledger.totals(at(27s))) == ledger.totals(at(27s)));  // it has grown into it
}

TEST_CASE("what the phases of an incident took is known with it", "[ledger]") {
  Ledger ledger = after_a_loss();
  const auto spent = [&](TimeCause cause) { return ledger.incidents().front().spent[static_cast<std::size_t>(cause)]; };
  CHECK(ledger.recovered_count() == 0);
  ledger.decided(at(2200ms), 2, {.step = 80ms, .restore = 20ms, .connect = 30ms});
  CHECK(ledger.recovered_count() == 1);
  CHECK(spent(TimeCause::detect) == 1ms);
  CHECK(spent(TimeCause::stop) == 2ms);
  CHECK(spent(TimeCause::agree) == 7ms);
  CHECK(spent(TimeCause::restart) == 10ms);
  CHECK(spent(TimeCause::connect) == 30ms);
  CHECK(spent(TimeCause::restore) == 20ms);
  CHECK(spent(TimeCause::again) == 0ms);
  ledger.decided(at(3s), 3, {.step = 100ms});
  CHECK(ledger.recovered_count() == 1);
}

TEST_CASE("whatever comes, the sum is the wall time, nothing falls, and points are in order", "[ledger]") {
  for_all_seeds(2000, [](Rng& rng) {
    Ledger ledger{start};
    SteadyTimes steady;
    TimeByCause seen{};
    Instant now = start, newest = start;
    bool over = false;
    const auto any_time = [&] { return rng.chance(0.2) ? Duration{0} : Duration{static_cast<std::int64_t>(rng.below(2'000'000'000))}; };
    for (std::uint64_t events = 1 + rng.below(200); events > 0; --events) {
      const TimeByCause before = ledger.totals();
      now += any_time();
      const Instant when = rng.chance(0.1) ? now - any_time() : now;  // a clock that was read earlier
      switch (rng.below(10)) {
        case 0: ledger.know_steps(); break;
        case 1: ledger.world_began(when, rng.below(9), static_cast<std::uint32_t>(rng.below(5))); break;
        case 2: ledger.went_on_from(rng.below(9), rng.chance(0.1) ? ~std::uint64_t{0} : rng.below(9)); break;
        case 3: ledger.lost(when, "lost"); break;
        case 4: ledger.pushed(when, "pushed", rng.chance(0.3) ? Ledger::Cut::without_failure : Ledger::Cut::by_failure); break;
        case 5: ledger.stopped(when); break;
        case 6: rng.chance(0.05) ? ledger.finished(when) : ledger.job_over(rng.chance(0.1) ? when : start); break;
        default: ledger.decided(when, rng.below(40), {any_time(), any_time(), any_time(), any_time(), any_time()}); break;
      }
      for (std::size_t i = 0; i < time_causes; ++i) REQUIRE(ledger.totals()[i] >= before[i]);
      REQUIRE(sum_of(ledger.totals()) <= ledger.wall(now));
      REQUIRE(sum_of(ledger.totals(now)) == ledger.wall(now));
      if (rng.chance(0.3)) {
        const TimeByCause last = std::exchange(seen, steady.look(ledger.totals(now)));
        REQUIRE(sum_of(seen) == std::max(ledger.wall(now), sum_of(last)));  // an end whose clock was read earlier takes nothing back
        for (std::size_t i = 0; i < time_causes; ++i) REQUIRE(seen[i] >= last[i]);
      }
      over = over || ledger.wall(now) != now - start;
      if (!over) newest = now;
      REQUIRE(ledger.wall(now) >= sum_of(before));
    }
    TimeByCause phases{};
    for (const Incident& incident : ledger.incidents())
      for (std::size_t i = 0; i < time_causes; ++i) phases[i] += incident.spent[i];
    for (std::size_t i = 0; i < time_causes; ++i) REQUIRE(phases[i] <= ledger.totals()[i]);
    ledger.finished(now);
    REQUIRE(sum_of(ledger.totals()) == ledger.wall(now + 1h));
    if (!over) REQUIRE(sum_of(ledger.totals()) == now - start);
    REQUIRE(ledger.incidents().size() <= Ledger::incidents_max);
    Instant last = start;
    for (const Incident& incident : ledger.incidents()) {
      REQUIRE(incident.point(Point::seen).has_value());
      for (const auto& point : incident.at) {
        if (!point) continue;
        REQUIRE(*point >= last);
        last = *point;
      }
      REQUIRE(last <= newest + (over ? 1000h : 0h));
    }
  });
}

}  // namespace elrun::test
