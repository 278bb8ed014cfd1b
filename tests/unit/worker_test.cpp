#include "launcher/supervise/node_workers.hpp"

#include "launcher/options/options.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

Worker started(std::uint32_t rank, std::optional<std::uint32_t> place) {
  Worker w;
  const Membership membership{{1, {}}, Rank{rank}, WorldSize{2}};
  if (place) w.start_in(membership, *place);
  else w.start_beside(membership);
  return w;
}

Worker ended(std::uint32_t rank, std::optional<std::uint32_t> place, Ending ending) {
  Worker w = started(rank, place);
  w.ends({LocalRank{0}, ending}, Instant{});
  return w;
}

/// In a world, with a session of a Job that can stay.
Worker staying() {
  Worker w = started(0, 0);
  Hello said;
  said.is_job = said.stays = true;
  w.opens(7, said);
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

TEST_CASE("a worker's life goes on as the table says, and in no other way", "[worker]") {
  const auto follow = [](Life before) {
    std::vector<Life> after;
    for (std::size_t i = 0; i < life_states; ++i)
      if (may_follow(before, static_cast<Life>(i))) after.push_back(static_cast<Life>(i));
    return after;
  };
  CHECK(follow(Life::none) == std::vector{Life::running, Life::pending});
  CHECK(follow(Life::running) == std::vector{Life::running, Life::leaving, Life::stopping, Life::ended});
  CHECK(follow(Life::leaving) == std::vector{Life::stayed, Life::stopping, Life::ended});
  CHECK(follow(Life::stayed) == std::vector{Life::running, Life::stopping, Life::ended});
  CHECK(follow(Life::stopping) == std::vector{Life::running, Life::stopping, Life::ended});
  CHECK(follow(Life::pending) == std::vector{Life::running, Life::ready, Life::dismissed, Life::ended});
  CHECK(follow(Life::ready) == std::vector{Life::running, Life::stopping, Life::dismissed, Life::ended});
  CHECK(follow(Life::dismissed) == std::vector{Life::ended});
  CHECK(follow(Life::ended) == std::vector{Life::collected});
  CHECK(follow(Life::collected).empty());  // its successor is a worker of its own
}

TEST_CASE("a worker is stopped when it has ended, or stays and has acknowledged", "[worker]") {
  Worker w = staying();
  CHECK_FALSE(w.is_stopped());
  CHECK(w.leave_generation(true));
  CHECK_FALSE(w.is_stopped());
  w.life.enter(Life::stayed);
  CHECK(w.is_stopped());
  Worker pending = started(0, {});
  CHECK(pending.is_stopped());  // nobody waits for it
  pending.life.enter(Life::dismissed);
  CHECK_FALSE(pending.is_stopped());
  CHECK(ended(0, 0, {}).is_stopped());
}

TEST_CASE("a worker stays when it can, has a session, and does not hang", "[worker]") {
  Worker w = staying();
  SECTION("all of that") { CHECK(w.leave_generation(true)); }
  SECTION("nobody stays") { CHECK_FALSE(w.leave_generation(false)); }
  SECTION("it hangs") {
    w.hung = "no sign of progress";
    CHECK_FALSE(w.leave_generation(true));
  }
  SECTION("it has no connection") {
    w.session.connection.reset();
    CHECK_FALSE(w.leave_generation(true));
  }
  CHECK(w.life.stays() != w.life.is(Life::stopping));
}

TEST_CASE("a worker that lost a peer is held once, and only if it can stay", "[worker]") {
  Worker w = staying();
  CHECK_FALSE(w.hold());
  w.peer_loss = PeerLoss::said;
  CHECK(w.hold());
  CHECK_FALSE(w.hold());
  Worker program = started(0, 0);
  program.peer_loss = PeerLoss::said;
  CHECK_FALSE(program.hold());
}

TEST_CASE("a pending worker becomes ready once, and not when it is being killed", "[worker]") {
  Worker w = started(0, {});
  w.hung = "no sign of progress", w.pending.kill_at = Instant{} + 5s;  // its stacks are being taken
  CHECK(w.becomes_ready());
  CHECK(w.hung.empty());
  CHECK_FALSE(w.pending.kill_at);
  CHECK_FALSE(w.becomes_ready());
  Worker killed = started(0, {});
  killed.hung = "no sign of progress";
  CHECK_FALSE(killed.becomes_ready());
  Worker dismissed = started(0, {});
  dismissed.life.enter(Life::dismissed);
  CHECK_FALSE(dismissed.becomes_ready());
  dismissed.ends({LocalRank{0}, {.exit_code = 0, .signal = SIGKILL}}, Instant{});
  CHECK(dismissed.life.was_dismissed());
}

TEST_CASE("a worker that lost its connection gets a place that nobody can tell it", "[worker]") {
  Worker w = started(0, {});
  REQUIRE(w.becomes_ready());
  SECTION("with a connection it can be told") {
    w.session.connection = 7;
    CHECK(w.take_place(1));
  }
  SECTION("without") {
    CHECK_FALSE(w.take_place(1));
    CHECK(w.life.is(Life::stopping));
  }
  CHECK(w.runs());
}

TEST_CASE("a Job's worker is killed at the end of a generation, another program is asked, and a signal is passed on", "[worker]") {
  Worker w = started(0, 0);
  CHECK(w.stop_signal({}, false) == SIGTERM);
  CHECK(w.stop_signal({}, true) == SIGKILL);  // its node's workers are a Job's, and it has not said what it is
  w.session.opened = true;
  CHECK(w.stop_signal({}, true) == SIGTERM);
  w.session.is_job = true;
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
  Worker w = staying();
  const Instant now{};
  w.ready_to_leave = true, w.peer_loss = PeerLoss::held, w.told_alive = true;
  w.returns.within = 50s;
  w.session.is_job = w.session.joined = true;
  REQUIRE(w.leave_generation(true));
  w.life.enter(Life::stayed);
  CHECK(w.take_place(0));
  w.enter_world(now, 30s);
  CHECK(w.life.is(Life::running));
  CHECK(w.session.joined);
  CHECK(w.returns.by == now + 50s);
  CHECK_FALSE(w.ready_to_leave);
  CHECK(w.peer_loss == PeerLoss::none);
  CHECK_FALSE(w.told_alive);
  CHECK_FALSE(w.is_late(now + 50s - 1ns));
  CHECK(w.is_late(now + 50s));
  CHECK_FALSE(w.is_late(now + 50s));  // once
  Worker loads = staying();           // its program has not come to its Job yet
  loads.session.is_job = true;
  REQUIRE(loads.leave_generation(true));
  loads.life.enter(Life::stayed);
  CHECK(loads.take_place(0));
  loads.enter_world(now, 30s);
  CHECK_FALSE(loads.returns.by);
  CHECK(loads.is_starting());
  Worker fresh = started(1, 1);
  fresh.enter_world(now, 30s);
  CHECK_FALSE(fresh.returns.by);  // it has nowhere to come back from
  CHECK(fresh.is_starting());
}

TEST_CASE("who says Hello is known by its process number, else by the rank that it was started with", "[worker]") {
  Workers workers{started(3, 0), started(3, 1), started(4, {})};
  workers[0].pid = 100, workers[1].pid = 101;
  CHECK(worker_that_says(workers, hello(3, 2, 101)) == 1u);
  workers[1].session.connection = 7;  // it has a session already, so a wrapper's program with this rank is the other one's
  CHECK(worker_that_says(workers, hello(3, 2, 999)) == 0u);
  CHECK_FALSE(worker_that_says(workers, hello(3, 3, 999)));
  CHECK(worker_with(workers, 7) == 1u);
  CHECK_FALSE(worker_with(workers, 8));
}

TEST_CASE("places go to workers that go on, then to pending ones that are ready, then to those that are started", "[worker]") {
  Workers workers{ended(0, 0, {.exit_code = 1}), started(1, 1), started(2, {}), started(3, {})};
  REQUIRE(workers[3].becomes_ready());
  CHECK(choose_places(workers, 1) == std::vector<bool>{false, true, false, false});
  CHECK(choose_places(workers, 2) == std::vector<bool>{false, true, false, true});
  CHECK(choose_places(workers, 3) == std::vector<bool>{true, true, false, true});
  CHECK(choose_places(workers, 4) ==
        std::vector<bool>{true, true, true, true});  // one that is pending and not ready: only if the world counts it in
}

TEST_CASE("where some workers go on, the successor of a Job's worker is started beside the next generation", "[worker]") {
  Workers workers{ended(0, 0, {.exit_code = 1}), started(1, 1)};
  CHECK(places_wanted(workers, 2, true) == 2);  // a program that cannot stay: it starts with the next generation
  workers[0].session.is_job = workers[0].session.can_stay = true;
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
  Worker dismissed = started(2, {});
  dismissed.life.enter(Life::dismissed);
  dismissed.ends({LocalRank{2}, {.exit_code = 0, .signal = SIGKILL}}, Instant{});
  workers.push_back(dismissed);
  CHECK(failed_first(workers, workers[1]));  // elrun killed the other one, which is no failure
  workers.pop_back();
  CHECK(fate_of(workers) == "1 worker ended, 1 worker killed");
  CHECK(fate_of({}) == "no worker of it was running");
}
