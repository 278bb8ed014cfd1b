#include "launcher/supervise/worker_reports.hpp"

#include "checkpoint/format/records.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

/// Two workers in generation 1, with ranks 2 and 3 of 4, and a line to a coordinator that serves it.
struct Told {
  Told() {
    World world;
    world.generation.number = 1;
    world.seat.nodes = 2, world.seat.base_rank = 2, world.seat.world_size = 4;
    (void)generation.begin(world, Instant{});
    workers.begin(world.seat, false);
    for (const GivenPlace& given : workers.give_places(2)) (void)workers.start(given, world, 0);
    line.up(Instant{}, {}), line.serves(true);
  }
  [[nodiscard]] NodeView view() const {
    return {.workers = workers, .generation = generation, .job = job, .now = Instant{} + 20s, .runs = true, .starts_slow = true};
  }
  void opens(std::size_t worker, bool is_job = true) {
    Hello said;
    said.is_job = is_job;
    workers[worker].opens(10 + worker, said);
  }
  void ends(std::uint32_t worker, Ending ending, Duration ago = {}) {
    workers[worker].ends({LocalRank{worker}, ending, {}, ago}, Instant{} + 20s);
  }

  NodeWorkers workers{2, RunId{"job"}, NodeId{"n"}};
  NodeGeneration generation{2};
  JobProgress job;
  CoordinatorLine line;
};

template <class M>
std::vector<M> sent(const Actions& actions) {
  std::vector<M> messages;
  for (const Action& a : actions)
    if (const auto* m = std::get_if<M>(&std::get<Send>(a).message)) messages.push_back(*m);
  return messages;
}

}  // namespace

TEST_CASE("the first failure of a node is reported in full, later ones are cut", "[reports]") {
  Told node;
  node.ends(0, {.exit_code = 3}, 2s), node.ends(1, {.exit_code = 4}, 1s);
  for (std::size_t i = 0; i < 2; ++i) node.workers[i].death.traceback = std::string(death_traceback_max, 'x');
  const WorkerFailed first = worker_failed(node.workers, 0, {1, {}}, Instant{} + 20s, {});
  CHECK(first.rank == 2u);
  CHECK(first.exit_code == 3);
  CHECK(first.ago == 2s);
  CHECK(first.before_session);
  CHECK(first.death.traceback.size() == death_traceback_max);
  CHECK(worker_failed(node.workers, 1, {1, {}}, Instant{} + 20s, {}).death.traceback.size() <= death_beside_max);
}

TEST_CASE("of a worker that was in no world yet, a report has the rank of the worker before it, and the generation that this was in",
          "[reports]") {
  Told node;
  node.workers[1].start_beside({{1, {{7, 8}}}, Rank{3}, WorldSize{4}});
  node.ends(0, {.exit_code = 3}), node.ends(1, {.exit_code = 3});
  CHECK_FALSE(worker_failed(node.workers, 0, {2, {}}, Instant{} + 20s, {}).successor_in);
  const WorkerFailed failed = worker_failed(node.workers, 1, {2, {}}, Instant{} + 20s, {});
  CHECK(failed.generation.number == 2);
  CHECK(failed.rank == 3u);
  CHECK(failed.successor_in == Generation{1, {{7, 8}}});
}

TEST_CASE("a failure report says that the program had not returned from the generation before, except for a worker in its first place",
          "[reports]") {
  for (const bool stayed : {false, true})
    for (const bool back : {false, true}) {
      CAPTURE(stayed, back);
      Worker w;
      if (stayed) {
        w.start_in({}, 0);
        w.opens(1, {.is_job = true, .stays = true});
        w.session.joined = true;
        REQUIRE(w.leave_generation(true));
        w.life.enter(Life::stayed);
      } else {
        w.start_beside({});
        w.opens(1, {.is_job = true, .stays = true});
        w.pending.says_ready = true;
        REQUIRE(w.becomes_ready());
      }
      REQUIRE(w.take_place(0));
      w.enter_world(Instant{} + 1s, 30s);
      if (back) w.returns.by.reset();
      w.ends({.worker = LocalRank{0}, .ending = {.exit_code = 3}}, Instant{} + 2s);
      CHECK(w.ended_away == (stayed && !back));
    }
}

TEST_CASE("a worker that failed before elrun's signal ended it counts as ended with code 1", "[reports]") {
  Told node;
  node.ends(0, {.exit_code = 0, .signal = SIGTERM}, 5s);
  node.workers[0].death.error = "RuntimeError: no such device";
  const WorkerFailed cut = worker_failed(node.workers, 0, {1, {}}, Instant{} + 20s, Instant{} + 16s);
  CHECK(cut.exit_code == 1);
  CHECK(cut.what == "signal 15 (SIGTERM) of elrun, after RuntimeError: no such device");
  const WorkerFailed by_itself = worker_failed(node.workers, 0, {1, {}}, Instant{} + 20s, Instant{} + 14s);
  CHECK(by_itself.exit_code == 128 + SIGTERM);
  CHECK(by_itself.what == "signal 15 (SIGTERM): RuntimeError: no such device");
}

TEST_CASE("a worker that lives and cannot go on is told of by its report, or else the first that lost a peer", "[reports]") {
  Told node;
  const LossReport gone{1, "gone"}, own{1, "NCCL failed", true};
  CHECK_FALSE(living_worker_failed(node.workers, {1, {}}, gone));
  node.workers[0].peer_loss = node.workers[1].peer_loss = PeerLoss::said;
  node.workers[1].pid = 77;
  const auto lost = living_worker_failed(node.workers, {1, {}}, gone);
  CHECK((lost->local_rank == 1 && lost->rank == 3u && lost->death.pid == 77));
  CHECK(lost->what == "the loss of a peer that is not known to have died (gone)");
  CHECK(living_worker_failed(node.workers, {1, {}}, own)->what == "a failure of its own, which its process outlived (NCCL failed)");
  node.ends(1, {.exit_code = 3});
  CHECK(living_worker_failed(node.workers, {1, {}}, own)->rank == 2u);
  CHECK(living_worker_failed(node.workers, {1, {}}, own)->what == "the loss of a peer that is not known to have died (NCCL failed)");
  node.ends(0, {.exit_code = 3});
  CHECK_FALSE(living_worker_failed(node.workers, {1, {}}, gone));
}

TEST_CASE("all ended well when each ended with 0, or in whatever way once the job was over", "[reports]") {
  Told node;
  node.ends(0, {});
  CHECK_FALSE(all_ended_well(node.view()));
  node.ends(1, {.exit_code = 3});
  CHECK_FALSE(all_ended_well(node.view()));
  CHECK(sent<WorkersDone>(tell_done(node.view())).at(0).before_session);
  node.job.finish();
  CHECK(all_ended_well(node.view()));
  CHECK_FALSE(sent<WorkersDone>(tell_done(node.view())).at(0).before_session);
}

TEST_CASE("the coordinator is told once in a generation that the workers are a Job's", "[reports]") {
  Told node;
  CHECK(tell_job(node.line, node.view()).empty());
  node.opens(0, false);
  CHECK(tell_job(node.line, node.view()).empty());
  node.opens(1);
  CHECK(sent<WorkersAreJob>(tell_job(node.line, node.view())).size() == 1);
  CHECK(tell_job(node.line, node.view()).empty());
}

TEST_CASE("the coordinator is told of the first worker that has not joined, and again when that changes", "[reports]") {
  Told node;
  const auto starting = sent<WorkersStarting>(tell_starting(node.line, node.view()));
  REQUIRE(starting.size() == 1);
  CHECK(starting[0].rank == 2);
  CHECK(starting[0].count == 2);
  CHECK(starting[0].ago == 20s);
  CHECK(tell_starting(node.line, node.view()).empty());
  node.workers[0].session.joined = true;
  CHECK(sent<WorkersStarting>(tell_starting(node.line, node.view())).at(0).rank == 3);
}

TEST_CASE("a place is asked for only when a pending worker is ready and the node does not leave", "[reports]") {
  Told node;
  CHECK(offer_more(node.line, node.view()).empty());
  node.workers[1].start_beside({{1, {}}, Rank{3}, WorldSize{4}});
  CHECK(offer_more(node.line, node.view()).empty());
  REQUIRE(node.workers[1].becomes_ready());
  const auto more = sent<MoreWorkers>(offer_more(node.line, node.view()));
  REQUIRE(more.size() == 1);
  CHECK(more[0].count == 1);
  NodeView leaving = node.view();
  leaving.leaves = true;
  CHECK(offer_more(node.line, leaving).empty());
  node.line.down({Code::unreachable, Remedy::retry, "reset"}, "host:1");
  CHECK(offer_more(node.line, node.view()).empty());
}

TEST_CASE("a coordinator that serves the generation from now on is told all of it", "[reports]") {
  Told node;
  node.opens(0);
  (void)tell_job(node.line, node.view());
  node.ends(1, {.exit_code = 3});
  Actions all = tell_all(node.line, node.view());
  CHECK(sent<WorkerFailed>(all).size() == 1);
  CHECK(sent<WorkersAreJob>(all).size() == 1);  // again
  CHECK(sent<WorkersDone>(all).empty());
  node.ends(0, {});
  node.job.finish();
  all = tell_all(node.line, node.view());
  CHECK(sent<JobFinished>(all).size() == 1);
  CHECK(sent<WorkerFailed>(all).empty());
  CHECK(sent<WorkersDone>(all).size() == 1);
  NodeView joining = node.view();
  joining.runs = false;
  CHECK(tell_all(node.line, joining).empty());
}

TEST_CASE("an agent that hears late of an older checkpoint remembers the newest", "[reports]") {
  const auto text = [](std::uint64_t step, FenceNumber fence) {
    return encode(Acknowledgement{{step, fence, 1}, std::string(32, 'a'), {"run", Generation{3, {{1, 2}}}, 1}, "/ck", "abc"});
  };
  JobProgress job;
  for (const std::string& newer : {text(30, 1), text(20, 2)}) {  // the second is of a job that went back
    job.checkpoint_saved(newer);
    CHECK(job.remembered().checkpoint == newer);
    job.checkpoint_saved(text(10, 1));
    CHECK(job.remembered().checkpoint == newer);
  }
}
