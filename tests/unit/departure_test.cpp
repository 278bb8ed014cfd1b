#include "launcher/supervise/departure.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("the first signal lets a Job save, the second kills", "[departure]") {
  Departure departure;
  CHECK(departure.on_signal(false, true, false) == Departing::prepare);
  departure.prepare(15, Instant{} + 30s);
  CHECK(departure.signal() == 15);
  CHECK(departure.on_signal(false, true, true) == Departing::leave_and_kill);
  CHECK(departure.on_signal(true, false, false) == Departing::kill);
}

TEST_CASE("workers that cannot save get the signal; while they end, a second one kills them", "[departure]") {
  Departure departure;
  CHECK(departure.on_signal(false, false, false) == Departing::leave);
  CHECK(departure.on_signal(true, false, false) == Departing::kill);
}

TEST_CASE("a first signal while workers are ending already is passed on to them", "[departure]") {
  Departure departure;
  CHECK(departure.on_signal(true, false, false) == Departing::leave);
}

TEST_CASE("the grace begins with the signal, and saving is part of it", "[departure]") {
  Departure departure;
  const Instant now{};
  CHECK(departure.kill_at(now + 5s, 30s) == now + 35s);
  departure.prepare(15, now + 30s);
  CHECK(departure.kill_at(now + 25s, 30s) == now + 30s);
}
