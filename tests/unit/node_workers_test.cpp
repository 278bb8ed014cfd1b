#include "launcher/supervise/node_workers.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

World placed(std::uint64_t number, std::uint32_t base_rank, std::uint32_t world_size) {
  World w;
  w.generation.number = number;
  w.seat.base_rank = base_rank, w.seat.world_size = world_size;
  return w;
}

/// Two workers of a Job that can stay, on connections 10 and 11, in generation 1 with ranks 4 and 5.
NodeWorkers two() {
  NodeWorkers workers{2, RunId{"job"}, NodeId{"n"}};
  workers.begin(placed(1, 4, 6).seat, false);
  for (const GivenPlace& given : workers.give_places(2)) {
    (void)workers.start(given, placed(1, 4, 6), 0);
    Hello said;
    said.is_job = said.stays = true;
    workers[given.worker].pid = static_cast<std::int64_t>(100 + given.worker);
    workers[given.worker].opens(10 + given.worker, said);
  }
  return workers;
}

void acknowledge(Worker& w) { w.life.enter(Life::stayed); }

const Failure lost{Code::peer_lost, Remedy::rejoin, "rank 1 died"};
GenerationEnd over(bool some_stay, std::optional<int> signal = {}) {
  return {.generation = {1, {}}, .why = lost, .some_stay = some_stay, .signal = signal, .node_runs_job = true};
}

std::string words(const Actions& actions) {
  std::string text;
  for (const Action& a : actions) {
    if (const auto* s = std::get_if<SignalGroup>(&a))
      text += "signal " + std::to_string(s->worker.value()) + " " + std::to_string(s->number);
    else if (const auto* r = std::get_if<Release>(&a)) text += "release " + std::to_string(r->worker.value());
    else if (const auto* h = std::get_if<HangUp>(&a)) text += "hang up " + std::to_string(h->connection);
    else if (const auto* o = std::get_if<EndOrphans>(&a)) text += "orphans but of " + std::to_string(o->stay.size());
    else if (const auto* answer = std::get_if<Answer>(&a))
      text += (std::holds_alternative<Welcome>(answer->message) ? "welcome " : "tell ") + std::to_string(answer->to);
    else if (std::holds_alternative<Say>(a)) text += "say";
    else text += "?";
    text += "; ";
  }
  return text;
}

}  // namespace

TEST_CASE("a worker is named by its rank, and one that is in no world yet by that of the worker before it", "[workers]") {
  NodeWorkers workers = two();
  CHECK(workers.name(1) == "rank 5 (node n, pid 101)");
  workers[1].start_beside({{1, {}}, Rank{5}, WorldSize{6}});
  workers[1].pid = 201;
  CHECK(workers.name(1) == "the successor of rank 5 of generation 1 (node n, pid 201)");
}

TEST_CASE("those that can stay are told that their generation is over, others are signalled", "[workers]") {
  NodeWorkers workers = two();
  SECTION("all stay") {
    CHECK(words(workers.end_generation(over(true))) == "tell 10; tell 11; ");
    CHECK_FALSE(workers.are_stopped());
    acknowledge(workers[0]);
    CHECK_FALSE(workers.are_stopped());
    acknowledge(workers[1]);
    CHECK(workers.are_stopped());
    CHECK(words(workers.collect(true)) == "orphans but of 2; ");
  }
  SECTION("nobody stays") { CHECK(words(workers.end_generation(over(false))) == "tell 10; signal 0 9; tell 11; signal 1 9; "); }
  SECTION("a signal is passed on, and no message is sent beside it") {
    CHECK(words(workers.end_generation(over(false, SIGTERM))) == "signal 0 15; signal 1 15; ");
  }
  SECTION("what an ended worker left in its group is killed") {
    workers[0].ends({LocalRank{0}, {.exit_code = 3}}, Instant{});
    CHECK(words(workers.end_generation(over(true))) == "tell 10; signal 0 9; tell 11; ");
    acknowledge(workers[1]);
    CHECK(words(workers.collect(true)) == "hang up 10; release 0; orphans but of 1; ");
    CHECK(workers.places_wanted(true) == 1);
  }
}

TEST_CASE("who does not acknowledge in time is killed, and who did only when there is no next generation", "[workers]") {
  NodeWorkers workers = two();
  (void)workers.end_generation(over(true));
  acknowledge(workers[0]);
  CHECK(words(workers.kill_staying(2s)) == "say; signal 1 9; ");
  CHECK(words(workers.kill_staying(2s)).empty());
  CHECK(words(workers.kill_running()) == "signal 1 9; ");  // of those that stay none
  CHECK(words(workers.pass_on(SIGINT)) == "signal 0 2; signal 1 2; ");
  SECTION("there is none") { CHECK(words(workers.kill_staying({})) == "signal 0 9; "); }
  SECTION("the job is over, and it did not say in time that it knows") {
    CHECK(words(workers.kill_staying(2s, Generation{3, {}})) == "say; signal 0 9; ");
  }
  CHECK_FALSE(workers.are_stopped());
}

TEST_CASE("in a smaller world the successor of a dead worker is started beside it, in its old place", "[workers]") {
  NodeWorkers workers = two();
  workers[0].ends({LocalRank{0}, {.exit_code = 3}}, Instant{});
  (void)workers.end_generation(over(true));
  acknowledge(workers[1]);
  (void)workers.collect(true);
  REQUIRE(workers.places_wanted(true) == 1);
  workers.begin(placed(2, 7, 8).seat, false);
  const auto given = workers.give_places(1);
  REQUIRE(given.size() == 2);
  CHECK(given[0].worker == 1);
  CHECK(given[0].kind == GivenPlace::Kind::welcome);
  CHECK(given[1].worker == 0);
  CHECK(given[1].kind == GivenPlace::Kind::start_beside);
  const auto spawn = std::get<Spawn>(workers.start(given[1], placed(1, 4, 6), 1));
  CHECK(spawn.is_pending);
  CHECK(spawn.place == 0);
  CHECK(workers.rank(1) == 7);  // in the new world
  CHECK(workers.rank(0) == 4);  // by its environment
  CHECK(workers.name(1) == "rank 7 (node n, pid 101)");
  CHECK(workers.place_in(1, placed(2, 7, 8)).membership == Membership{{2, {}}, Rank{7}, WorldSize{8}});

  Hello said;
  said.stays = true;
  workers[0].opens(20, said);
  const Actions told = workers.tell_it_is_early(0, placed(2, 7, 8), {});
  CHECK(words(told) == "tell 20; welcome 20; tell 20; ");
  CHECK(std::get<Welcome>(std::get<Answer>(told[1]).message).place.membership == Membership{{1, {}}, Rank{4}, WorldSize{6}});
  CHECK(workers.dismiss_pending() == std::vector{LocalRank{0}});
  CHECK(workers.dismiss_pending().empty());
  workers[0].ends({LocalRank{0}, {.exit_code = 0, .signal = SIGKILL}}, Instant{});
  CHECK(words(workers.collect_at_once(0)) == "signal 0 9; release 0; hang up 20; ");
}

TEST_CASE("a job that is over has no workers in its next world", "[workers]") {
  NodeWorkers workers{2, RunId{"job"}, NodeId{"n"}};
  workers.begin(placed(1, 0, 2).seat, true);
  CHECK(workers.size() == 0);
  CHECK(workers.are_stopped());
}

TEST_CASE("workers that are not back in time are killed, and an agent that was stopped itself gives them more", "[workers]") {
  NodeWorkers workers = two();
  const Instant now{};
  workers[0].returns.by = now + 5s;
  workers[1].returns.by = now + 6s;
  CHECK(workers.next_deadline() == now + 5s);
  CHECK(words(workers.kill_late(now + 5s, 5s, {1, {}})) == "say; signal 0 9; ");
  workers.excuse(2s, now + 7s);
  CHECK(workers.next_deadline() == now + 8s);
  CHECK(words(workers.kill_late(now + 7s, 5s, {1, {}})).empty());
  workers.job_is_over();
  CHECK_FALSE(workers.next_deadline());
}

TEST_CASE("all workers of a Job are asked to save, and have saved when those that live said so", "[workers]") {
  NodeWorkers workers = two();
  CHECK(workers.can_save());
  CHECK(words(workers.ask_to_save({1, {}})) == "tell 10; tell 11; ");
  workers[0].ready_to_leave = true;
  CHECK_FALSE(workers.have_saved());
  workers[1].ends({LocalRank{1}, {}}, Instant{});
  CHECK(workers.have_saved());
  SECTION("not one that hangs") { workers[0].hung = "no sign of progress"; }
  SECTION("not one without a session") { workers[0].session.connection.reset(); }
  SECTION("not another program") { workers[0].session.is_job = false; }
  SECTION("not one that has ended") { workers[0].ends({LocalRank{0}, {}}, Instant{}); }
  CHECK_FALSE(workers.can_save());
}

TEST_CASE("only workers that hang are ended for it", "[workers]") {
  NodeWorkers workers = two();
  workers[1].hung = "no sign of progress";
  CHECK(words(workers.end_hung(SIGABRT)) == "signal 1 6; ");
  workers[1].ends({LocalRank{1}, {.exit_code = 0, .signal = SIGABRT}}, Instant{});
  CHECK(words(workers.end_hung(SIGKILL)).empty());
}

TEST_CASE("only those that lost a peer are held", "[workers]") {
  NodeWorkers workers = two();
  workers[1].peer_loss = PeerLoss::said;
  CHECK(words(workers.hold_the_broken({1, {}})) == "tell 11; ");
  CHECK(words(workers.hold_the_broken({1, {}})).empty());
}
