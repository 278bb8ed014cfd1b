#include "launcher/supervise/departure.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("the first signal lets a Job save, the second kills", "[departure]") {
  Departure departure;
  CHECK(departure.on_signal(false, true, false) == Departing::prepare);
  departure.prepare(15, "SIGTERM", Instant{} + 30s);
  CHECK(departure.signal() == 15);
  CHECK(departure.on_signal(false, true, true) == Departing::leave_and_kill);
  CHECK(departure.on_signal(true, false, false) == Departing::kill);
}

TEST_CASE("what asked a node first is what it leaves for", "[departure]") {
  Departure departure;
  CHECK(departure.signal() == 0);
  departure.leave(2, "SIGINT");
  departure.leave(15, "SIGTERM");
  CHECK(departure.signal() == 2);
  CHECK(departure.why() == "SIGINT");
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
  departure.prepare(15, "SIGTERM", now + 30s);
  CHECK(departure.kill_at(now + 25s, 30s) == now + 30s);
}

TEST_CASE("a notice is as a first signal, and the signal that follows it is no second one", "[departure]") {
  Departure departure;
  CHECK(departure.on_notice(true) == Departing::prepare);
  departure.prepare(15, "preempt notice (x)", Instant{} + 30s);
  CHECK(departure.why() == "preempt notice (x)");
  CHECK(departure.on_notice(true) == Departing::goes_on);
  CHECK(departure.on_signal(false, true, true) == Departing::goes_on);
  CHECK(departure.on_signal(false, true, true) == Departing::leave_and_kill);
  CHECK(departure.on_signal(true, false, false) == Departing::kill);
}

TEST_CASE("a notice after a signal changes nothing", "[departure]") {
  Departure departure;
  CHECK(departure.on_signal(false, false, false) == Departing::leave);
  CHECK(departure.on_notice(true) == Departing::goes_on);
  CHECK(departure.on_signal(true, false, false) == Departing::kill);
}

TEST_CASE("a notice while workers cannot save lets them have the signal at once", "[departure]") {
  Departure departure;
  CHECK(departure.on_notice(false) == Departing::leave);
  CHECK(departure.on_signal(true, false, false) == Departing::goes_on);
  CHECK(departure.on_signal(true, false, false) == Departing::kill);
}
