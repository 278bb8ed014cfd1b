#include "launcher/supervise/node_generation.hpp"

#include "launcher/supervise/job_progress.hpp"
#include "launcher/supervise/stop_plan.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

World world(std::uint64_t number, std::uint32_t base_rank, std::uint32_t world_size) {
  World w;
  w.generation.number = number;
  w.seat.nodes = 2, w.seat.base_rank = base_rank, w.seat.world_size = world_size;
  return w;
}

}  // namespace

TEST_CASE("nothing of a generation is left in the next one", "[generation]") {
  NodeGeneration generation{2};
  const Instant now{};
  CHECK(generation.last().number == 0);
  CHECK(generation.begin(world(1, 0, 4), now).generation.number == 0);
  generation.fail_here();
  CHECK(generation.decide(7));
  CHECK_FALSE(generation.decide(7));  // another worker of this node said so already
  (void)generation.lost_peers().add({0, "rank 3 is gone"});
  CHECK(generation.begin(world(2, 2, 4), now + 5s).generation.number == 1);
  CHECK(generation.before().number == 1);
  CHECK_FALSE(generation.failed_here());
  CHECK(generation.step() == 0);
  CHECK(generation.decide(3));  // steps are done again
  CHECK_FALSE(generation.lost_peers().any());
  CHECK(generation.age(now + 6s) == 1s);
}

TEST_CASE("a world is past that is not newer, and lacks places when the node's ranks do not fit", "[generation]") {
  NodeGeneration generation{2};
  (void)generation.begin(world(5, 2, 4), {});
  CHECK(generation.is_past(world(5, 0, 4)));
  CHECK_FALSE(generation.is_past(world(6, 0, 4)));
  CHECK_FALSE(generation.lacks_places(world(6, 2, 4)));
  CHECK(generation.lacks_places(world(6, 3, 4)));
  World roles = world(6, 0, 4);
  roles.role = {.base_rank = 1, .world_size = 2};
  CHECK(generation.lacks_places(roles));
  CHECK(generation.has_rank(Rank{2}));
  CHECK(generation.has_rank(Rank{3}));
  CHECK_FALSE(generation.has_rank(Rank{1}));
  CHECK_FALSE(generation.has_rank(Rank{4}));
  generation.want_places(1);
  CHECK_FALSE(generation.has_rank(Rank{3}));
}

TEST_CASE("the log names ranks, restarts, and workers that are started beside the world", "[generation]") {
  NodeGeneration generation{2};
  World w = world(3, 2, 4);
  w.restarts.used = 1;
  (void)generation.begin(w, {});
  CHECK(
      describe_world(generation, {.staying = 1, .ready = 1, .max_restarts = 3, .recovering = 2s}) ==
      "generation 3: 2 nodes, 4 workers, ranks 2-3 here, 1 goes on here in the same process, 1 that was started meanwhile joins, started 2.0 s "
      "after the loss; 1 of 3 restarts used");
  generation.want_places(1);
  CHECK(
      describe_world(generation, {.beside = 2, .max_restarts = 3}) ==
      "generation 3: 2 nodes, 4 workers, rank 2 here; 1 of 3 restarts used; 2 workers are being started here, and joins when it is ready");
}

TEST_CASE("what a worker that starts again is told only grows", "[generation]") {
  JobProgress job;
  job.step_decided({StepNumber{9}}), job.step_decided({StepNumber{4}});
  job.checkpoint_saved("step 4"), job.checkpoint_saved("step 8");
  CHECK(job.remembered().decided == 9);
  CHECK(job.remembered().checkpoint == "step 8");
}

TEST_CASE("how workers fail after a checkpoint is remembered, until the job is beyond that", "[generation]") {
  JobProgress job;
  const Ending three{.exit_code = 3};
  const auto goes_on = [&](std::uint64_t generation, const std::string& checkpoint = "/ck/s40") {
    job.begin_generation(generation);
    job.went_on_from({.checkpoint = checkpoint, .step = 40});
  };
  const auto failures = [&] { return job.remembered().failures; };
  goes_on(1);
  job.step_decided({StepNumber{41}}), job.step_decided({StepNumber{42}});
  job.worker_failed(three), job.worker_failed(three);  // two workers of this node
  REQUIRE(failures() == std::vector<FailureAfter>{{"/ck/s40", 1, 42, "exit code 3"}});
  SECTION("the next generation adds its own; a step that may have been decided in the first one clears nothing") {
    goes_on(2);
    for (const std::uint64_t step : {41, 42, 43}) job.step_decided({StepNumber{step}});
    job.worker_failed({.signal = SIGSEGV});
    CHECK(failures() == std::vector<FailureAfter>{{"/ck/s40", 1, 42, "exit code 3"}, {"/ck/s40", 2, 43, "signal 11 (SIGSEGV)"}});
  }
  SECTION("exceptions end with one exit code, and are alike by their type, whatever they say") {
    goes_on(2);
    const Ending one{.exit_code = 1};
    job.worker_failed(one, "RuntimeError: loss is nan at 12:03"), job.worker_failed(one, "RuntimeError: loss is nan at 12:04");
    job.worker_failed(one, "torch.OutOfMemoryError: 3 GiB"), job.worker_failed(one, "KeyError");
    job.worker_failed(one, "no type at all: x");
    std::vector<std::string> ways;
    for (const FailureAfter& f : failures()) ways.push_back(f.how);
    CHECK(ways == std::vector<std::string>{"exit code 3", "exit code 1 (RuntimeError)", "exit code 1 (torch.OutOfMemoryError)",
                                           "exit code 1 (KeyError)", "exit code 1"});
  }
  SECTION("before a step is decided the checkpoint's own counts") {
    goes_on(2);
    job.worker_failed(three);
    CHECK(failures().back().step == 40);
  }
  SECTION("beyond it the checkpoint is cleared, also where members had the state in memory meanwhile") {
    goes_on(2);
    job.begin_generation(3);
    for (const std::uint64_t step : {43, 44}) job.step_decided({StepNumber{step}});
    CHECK(failures().empty());
  }
  SECTION("but not by a generation that went on from another one, or when this node was away meanwhile") {
    goes_on(2, "/ck/s20");
    job.step_decided({StepNumber{60}});
    CHECK(failures().size() == 1);
    goes_on(3);
    job.begin_generation(5);
    job.step_decided({StepNumber{60}});
    CHECK(failures().size() == 1);
  }
  SECTION("a generation that has not loaded a checkpoint says nothing of one, nor does what comes from outside") {
    job.begin_generation(2);
    job.worker_failed(three);
    goes_on(3, "");
    job.worker_failed(three);
    goes_on(4);
    for (const int signal : {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
      job.worker_failed({.signal = signal});
      job.worker_failed({.exit_code = 128 + signal});
    }
    job.worker_failed({});
    CHECK(failures().size() == 1);
  }
  SECTION("a bounded number is remembered, the newest") {
    for (std::uint64_t generation = 2; generation < 100; ++generation) {
      goes_on(generation);
      job.worker_failed({.exit_code = static_cast<int>(generation)});
    }
    CHECK(failures().size() == 32);
    CHECK(failures().back().how == "exit code 99");
  }
}

TEST_CASE("a reason to finish replaces one to join again, and says what became of the workers when a signal asked", "[generation]") {
  StopPlan plan;
  const Instant now{};
  plan.begin({.rejoin = true}, now);
  CHECK(plan.rejoins());
  CHECK(plan.ends_leftovers());
  plan.replace({.rejoin = false, .finish = {0, {}, true}});
  CHECK_FALSE(plan.rejoins());
  CHECK_FALSE(plan.ends_leftovers());  // the good end of a job
  CHECK(plan.since() == now);
  CHECK(plan.finish({}, true).after_signal.empty());
  plan.cut_short(15, "SIGTERM");
  CHECK(plan.ends_leftovers());
  CHECK(plan.finish({}, true).exit_code == 143);
  CHECK(plan.finish({}, true).after_signal == "SIGTERM: the job was done; no worker of it was running");
  plan.begin({.rejoin = false, .finish = {143, {}, false}, .asked_by = "SIGTERM"}, now + 1s);
  CHECK(plan.ends_leftovers());
  CHECK(plan.finish({}, false).after_signal == "SIGTERM: this node has left; no worker of it was running");
  CHECK(plan.finish({}, true).after_signal == "SIGTERM: the job was done; no worker of it was running");
}
