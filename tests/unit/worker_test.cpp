#include "launcher/supervise/worker.hpp"

#include "launcher/options/options.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

Worker started(std::uint32_t rank, std::optional<std::uint32_t> place) {
  Worker w;
  w.place = place;
  w.began_as = Membership{{1, {}}, Rank{rank}, WorldSize{2}};
  return w;
}

Worker ended(std::uint32_t rank, std::optional<std::uint32_t> place, Ending ending) {
  Worker w = started(rank, place);
  w.ending = ending;
  return w;
}

Hello hello(std::uint32_t rank, std::uint32_t world, std::uint64_t pid) {
  Hello said;
  said.rank = rank, said.world = world, said.pid = pid;
  return said;
}

}  // namespace

TEST_CASE("a worker without a place is pending while it lives", "[worker]") {
  CHECK(started(0, 0).runs());
  CHECK_FALSE(started(0, 0).is_pending());
  CHECK(started(0, {}).is_pending());
  CHECK_FALSE(started(0, {}).runs());
  CHECK_FALSE(ended(0, {}, {}).is_pending());
  CHECK_FALSE(Worker{}.is_pending());
}

TEST_CASE("a worker is stopped when it has ended, or stays and has acknowledged", "[worker]") {
  Worker w = started(0, 0);
  CHECK_FALSE(w.is_stopped());
  w.stays = true;
  CHECK_FALSE(w.is_stopped());
  w.quit = true;
  CHECK(w.is_stopped());
  Worker pending = started(0, {});
  CHECK(pending.is_stopped());  // nobody waits for it
  pending.pending.dismissed = true;
  CHECK_FALSE(pending.is_stopped());
  CHECK(ended(0, 0, {}).is_stopped());
}

TEST_CASE("a Job's worker is killed at the end of a generation, another program is asked, and a signal is passed on", "[worker]") {
  Worker w = started(0, 0);
  CHECK(w.stop_signal({}, false) == SIGTERM);
  CHECK(w.stop_signal({}, true) == SIGKILL);  // its node's workers are a Job's, and it has not said what it is
  w.session.opened = true;
  CHECK(w.stop_signal({}, true) == SIGTERM);
  w.is_job = true;
  CHECK(w.stop_signal({}, false) == SIGKILL);
  CHECK(w.stop_signal(SIGINT, true) == SIGINT);
}

TEST_CASE("a worker that was killed because it hung died of the hang", "[worker]") {
  Worker w = ended(0, 0, {.exit_code = 0, .signal = SIGKILL});
  CHECK(w.exit_code() == 128 + SIGKILL);
  w.hung = "no sign of progress for 5 s";
  CHECK(w.exit_code() == exit_code::hang);
  CHECK(w.cause().starts_with("a hang (no sign of progress for 5 s), then "));
}

TEST_CASE("a place in a new generation ends what held for the last one", "[worker]") {
  Worker w = started(0, 0);
  const Instant now{};
  w.stays = w.quit = w.ready_to_leave = w.cannot_go_on = w.held = true;
  w.returns_within = 50s;
  w.enter_world(now, 30s);
  CHECK(w.session.joined);
  CHECK(w.return_by == now + 50s);
  CHECK_FALSE((w.stays || w.quit || w.ready_to_leave || w.cannot_go_on || w.held));
  Worker fresh = started(1, 1);
  fresh.enter_world(now, 30s);
  CHECK_FALSE(fresh.return_by);  // it has nowhere to come back from
  CHECK(fresh.is_starting());
}

TEST_CASE("who says Hello is known by its process number, else by the rank that it was started with", "[worker]") {
  Workers workers{started(3, 0), started(3, 1), started(4, {})};
  workers[0].pid = 100, workers[1].pid = 101;
  CHECK(worker_that_says(workers, hello(3, 2, 101)) == 1u);
  workers[1].connection = 7;  // it has a session already, so a wrapper's program with this rank is the other one's
  CHECK(worker_that_says(workers, hello(3, 2, 999)) == 0u);
  CHECK_FALSE(worker_that_says(workers, hello(3, 3, 999)));
  CHECK(worker_with(workers, 7) == 1u);
  CHECK_FALSE(worker_with(workers, 8));
}

TEST_CASE("places go to workers that go on, then to pending ones that are ready, then to those that are started", "[worker]") {
  Workers workers{ended(0, 0, {.exit_code = 1}), started(1, 1), started(2, {}), started(3, {})};
  workers[3].pending.is_ready = true;
  CHECK(choose_places(workers, 1) == std::vector<bool>{false, true, false, false});
  CHECK(choose_places(workers, 2) == std::vector<bool>{false, true, false, true});
  CHECK(choose_places(workers, 3) == std::vector<bool>{true, true, false, true});
  CHECK(choose_places(workers, 4) == std::vector<bool>{true, true, false, true});  // one that is pending and not ready gets none
}

TEST_CASE("where some workers go on, the successor of a Job's worker is started beside the next generation", "[worker]") {
  Workers workers{ended(0, 0, {.exit_code = 1}), started(1, 1)};
  CHECK(places_wanted(workers, 2, true) == 2);  // a program that cannot stay: it starts with the next generation
  workers[0].is_job = workers[0].can_stay = true;
  CHECK(places_wanted(workers, 2, false) == 2);
  CHECK(places_wanted(workers, 2, true) == 1);
  CHECK(workers[0].pending.is_next);
  CHECK(choose_places(workers, 1) == std::vector<bool>{false, true});
}

TEST_CASE("the first failure of a node is told in full, and what became of its workers in a sentence", "[worker]") {
  Workers workers{ended(0, 0, {.exit_code = 1}), ended(1, 1, {.exit_code = 0, .signal = SIGKILL})};
  workers[0].failed_at = Instant{} + 2s, workers[1].failed_at = Instant{} + 1s;
  CHECK_FALSE(failed_first(workers, workers[0]));
  CHECK(failed_first(workers, workers[1]));
  CHECK(fate_of(workers) == "1 worker ended, 1 worker killed");
  CHECK(fate_of({}) == "no worker of it was running");
}
