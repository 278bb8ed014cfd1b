#include <atomic>
#include <cerrno>
#include <cfenv>
#include <limits>

#include "checkpoint/format/names.hpp"
#include "lib/job/fp_environment.hpp"
#include "lib/job/save/storage_wait.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/support/shared_clock.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

/// What a world of one says about a program.
Failure failure_of(const std::function<void(Job&)>& program) {
  const auto members = run_world({}, [&](Job& job, Member&) { program(job); });
  REQUIRE(members[0].failure.has_value());
  return *members[0].failure;
}

}  // namespace

TEST_CASE("a wrong configuration ends with 78 and all problems at once", "[job]") {
  const Failure f = failure_of([](Job& job) {
    Plan p = toy_plan(0);
    p.placement.gradients = Sharding::sharded;
    p.micro_batch = 5;
    job.configure(p, {.every = 3});
  });
  CHECK(exit_code(f) == 78);
  CHECK(contains(f.what, "does not divide"));
  CHECK(contains(f.what, "zero(0)"));
  CHECK(contains(f.what, "directory"));
}

TEST_CASE("calls out of order are told, not done", "[job]") {
  const auto what = [](auto program) { return failure_of(program).what; };
  CHECK(contains(what([](Job& job) { job.seal(); }), "seal comes after configure"));
  CHECK(contains(what([](Job& job) { job.configure(toy_plan(0)), job.seal(); }), "no unit is declared"));
  CHECK(contains(what([](Job& job) { (void)job.outcome(); }), "outcome"));
  const auto sealed = [](auto rest) {
    return [rest](Job& job) {
      job.configure(toy_plan(0));
      Unit u = job.unit("u");
      Tensor<float> t = u.tensor<float>("t", {4});
      job.seal();
      rest(job, u, t);
    };
  };
  CHECK(contains(what(sealed([](Job& job, Unit&, auto&) { (void)job.next_step(); })), "next_step comes after restore"));
  CHECK(contains(what(sealed([](Job& job, Unit&, auto&) { (void)job.unit("late"); })), "after seal()"));
  const auto stepping = [&](auto in_step) {
    return sealed([in_step](Job& job, Unit& u, auto&) {
      must(!job.restore(), "there is a checkpoint to restore");
      auto step = job.next_step();
      in_step(job, *step, u);
    });
  };
  const auto run_slots = [](Step& step) {
    for (Slot& slot : step.slots()) slot.report(1.0f, 1);
  };
  CHECK(contains(what(stepping([](Job&, Step& step, Unit&) {
                   for (Slot& s : step.slots()) (void)s;
                 })),
                 "without slot.report"));
  CHECK(contains(what(stepping([](Job&, Step& step, Unit&) {
                   for (Slot& s : step.slots()) s.report(1.0f, 1), s.report(1.0f, 1);
                 })),
                 "reported twice"));
  CHECK(contains(what(stepping([](Job&, Step& step, Unit&) { step.apply(AdamW{}, {}); })), "before all slots"));
  CHECK(contains(what(stepping([&](Job& job, Step& step, Unit&) { run_slots(step), (void)job.next_step(); })),
                 "before the step was applied"));
  CHECK(contains(what(stepping([&](Job&, Step& step, Unit&) { run_slots(step), step.apply(AdamW{}, {}), step.apply(AdamW{}, {}); })),
                 "apply was called twice"));
  CHECK(contains(what(stepping([&](Job&, Step& step, Unit&) { run_slots(step), step.apply(Sgd{}, {}); })),
                 "called with sgd, but the plan says adamw"));
  CHECK(contains(what(stepping([&](Job&, Step& step, Unit&) {
                   run_slots(step), step.apply(AdamW{.beta1 = 1}, {.lr = std::numeric_limits<float>::infinity()});
                 })),
                 "beta1 is 1"));
  CHECK(contains(what(stepping([](Job&, Step& step, Unit& u) {
                   for (Slot& s : step.slots()) {
                     { auto g = u.use_grad(); }
                     { auto g = u.use_grad(); }
                     s.report(1.0f, 1);
                   }
                 })),
                 "declare {.uses = 2}"));
}

TEST_CASE("a thread that rounds or flushes in its own way is refused", "[job]") {
  CHECK_FALSE(fp_environment_problem().has_value());
  std::fesetround(FE_UPWARD);
  const auto rounding = fp_environment_problem();
  std::fesetround(FE_TONEAREST);
  CHECK(rounding.has_value());
#ifdef __SSE2__
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8000);  // results flushed
  const auto flushing = fp_environment_problem();
  __builtin_ia32_ldmxcsr(before | 0x0040);  // operands taken as zero
  const auto zeroing = fp_environment_problem();
  __builtin_ia32_ldmxcsr(before);
  CHECK(flushing.has_value());
  CHECK(zeroing.has_value());
#endif
}

TEST_CASE("parameters that differ between ranks are told before the first step", "[job]") {
  std::atomic<int> next{0};
  const auto members = run_world({.world = 3}, [&](Job& job, Member&) {
    job.configure(toy_plan(1));
    auto t = job.unit("u").tensor<float>("t", {10});
    job.seal();
    (void)job.restore();
    t.data()[3] = static_cast<float>(next++);
    (void)job.next_step();
  });
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK(contains(m.failure->what, "job.rng(name)"));
    CHECK(exit_code(*m.failure) == 78);
  }
}

TEST_CASE("a gradient that is no number leaves the update out on all ranks, and the step counts", "[job]") {
  for (const std::uint32_t world : {1u, 3u}) {
    const auto members = run_world({.world = world}, [](Job& job, Member& me) {
      Plan plan = toy_plan(1);
      plan.steps = 3;
      job.configure(plan);
      Unit u = job.unit("u");
      auto t = u.tensor<float>("t", {2000});
      job.seal();
      (void)job.restore();
      while (auto step = job.next_step()) {
        const float before = t.data()[1999];
        for (Slot& slot : step->slots()) {
          auto g = u.use_grad();
          for (float& x : t.grad_span()) x = 1.0f;
          if (step->number() == 1 && slot.index() == 5) t.grad()[7] = std::numeric_limits<float>::quiet_NaN();
          slot.report(1.0f, 1);
        }
        me.steps.push_back(step->apply(AdamW{}, {.lr = 0.1f}));
        me.host_state += before != t.data()[1999];
      }
      me.outcome = job.outcome();
    });
    for (const Member& m : members) {
      REQUIRE(m.outcome.has_value());
      CHECK(m.outcome->step == 3);
      CHECK_FALSE(m.steps[0].skipped);
      CHECK(m.steps[1].skipped);
      CHECK_FALSE(m.steps[2].skipped);
      CHECK(m.host_state == 2);
      CHECK(m.outcome->state_hash == members[0].outcome->state_hash);
    }
  }
}

TEST_CASE("skipped steps are counted, and the count outlives a restart", "[job]") {
  const TemporaryDirectory root;
  const auto train = [&](std::uint64_t generation, std::uint64_t steps) {
    return run_world({.world = 2, .generation = generation}, [&](Job& job, Member& me) {
      Plan plan = toy_plan(0);
      plan.steps = steps;
      job.configure(plan, {.directory = root.path()});
      Unit u = job.unit("u");
      auto t = u.tensor<float>("t", {10});
      job.seal();
      (void)job.restore();
      while (auto step = job.next_step()) {
        for (Slot& slot : step->slots()) {
          auto g = u.use_grad();
          if (step->number() % 2 == 1) t.grad()[0] = std::numeric_limits<float>::infinity();
          slot.report(1.0f, 1);
        }
        me.steps.push_back(step->apply(AdamW{}, {.lr = 0.1f}));
      }
    });
  };
  for (const Member& m : train(1, 4)) {
    REQUIRE(m.steps.size() == 4);
    for (std::uint64_t s = 0; s < 4; ++s) CHECK(m.steps[s].steps_skipped == (s + 1) / 2);
  }
  for (const Member& m : train(2, 5)) {
    REQUIRE(m.steps.size() == 1);
    CHECK(m.steps[0].steps_skipped == 2);
  }
}

TEST_CASE("losses, tokens and evaluations are the same in every world", "[job]") {
  std::vector<Evaluation> evaluations;
  for (const std::uint32_t world : {1u, 2u, 3u, 7u}) {
    std::mutex mutex;
    const auto members = run_world({.world = world}, [&](Job& job, Member& me) {
      job.configure(toy_plan(0));
      (void)job.unit("u").tensor<float>("t", {10});
      job.seal();
      (void)job.restore();
      const Evaluation e = job.evaluate(10, [](Slot& slot) {  // four slots, the last with one sample
        float sum = 0;
        for (const std::uint64_t s : slot.samples()) sum += static_cast<float>(s) + slot.rng().uniform(s);
        slot.report(sum, slot.samples().size());
      });
      auto step = job.next_step();
      for (Slot& slot : step->slots()) slot.report(1.0f / static_cast<float>(1 + slot.index()), 10 + slot.index());
      me.steps.push_back(step->apply(AdamW{}, {}));
      const std::lock_guard lock{mutex};
      evaluations.push_back(e);
    });
    for (const Member& m : members) {
      REQUIRE(m.steps.size() == 1);
      CHECK(m.steps[0].tokens == 8 * 10 + 28);
      CHECK(m.steps[0].world == world);
    }
  }
  for (const Evaluation& e : evaluations) {
    CHECK(e.decided);
    CHECK(e.loss == evaluations[0].loss);
    CHECK(e.tokens == 10);
  }
}

TEST_CASE("a revoked step ends at once, is not decided, and names the reason", "[job]") {
  const auto members =
      run_world({.world = 2, .death = WorldOptions::Death{1, 9}}, [](Job& job, Member& me) { toy({.plan = toy_plan(0)})(job, me); });
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK(contains(m.failure->what, "rank 1 went away"));
    CHECK(contains(m.failure->what, "not elastic"));
    CHECK_FALSE(m.finished);
  }
}

TEST_CASE("under elrun a worker that cannot go on, and whose agent does not agree, ends and says both", "[job]") {
  const auto members = run_world({.world = 2, .death = WorldOptions::Death{1, 9}, .elastic = true}, toy({.plan = toy_plan(0)}));
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK_FALSE(contains(m.failure->what, "not elastic"));
    CHECK(contains(m.failure->what, "no next generation"));
    CHECK(contains(m.failure->what, "rank 1 went away"));
  }
}

TEST_CASE("of two jobs on one checkpoint root the older stops at its next save, with 1, and names both", "[job]") {
  const TemporaryDirectory root;
  const CheckpointOptions checkpoint{.directory = root.path(), .every = 2};
  std::vector<Member> newer;
  const auto older =
      run_world({}, toy({.plan = toy_plan(1), .checkpoint = checkpoint, .in_slot = [&](Job&, std::uint64_t step, Slot& slot) {
                           if (step == 3 && slot.index() == 0)
                             newer = run_world({.world = 2, .generation = 2}, toy({.plan = toy_plan(1), .checkpoint = checkpoint}));
                         }}));
  for (const Member& m : newer) CHECK(m.outcome.has_value());
  REQUIRE(older[0].failure.has_value());
  INFO(message(*older[0].failure));
  CHECK(older[0].failure->code == Code::refused);
  CHECK(exit_code(*older[0].failure) == 78);  // a restart would take the root back
  CHECK(older[0].steps.size() == 4);
}

TEST_CASE("an exception during a revoked step is told as the revocation", "[job]") {
  std::atomic<bool> over{false};
  const auto members = run_world({.world = 2}, [&](Job& job, Member&) {
    job.configure(toy_plan(0));
    (void)job.unit("u").tensor<float>("t", {10});
    job.seal();
    (void)job.restore();
    auto step = job.next_step();
    for (Slot& slot : step->slots()) {
      if (!over.exchange(true)) throw Error{Failure{Code::internal, Remedy::exit_process, "the first one trips"}};
      while (!slot.revoked()) std::this_thread::yield();
      throw std::runtime_error{"views were poisoned"};
    }
    step->apply(AdamW{}, {});
    (void)job.next_step();
  });
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK(contains(m.failure->what, "the first one trips"));
  }
}

TEST_CASE("without a checkpoint directory a later generation begins again and says so", "[job]") {
  const auto members = run_world({.world = 2, .generation = 4}, toy({.plan = toy_plan(0)}));
  CHECK(std::any_of(members[0].lines.begin(), members[0].lines.end(), [](const std::string& l) { return contains(l, "from nothing"); }));
}

TEST_CASE("a member whose node leaves has all save at the end of the step, once, and says so then", "[job]") {
  const TemporaryDirectory root;
  const auto saved = [&root](int step) { return std::filesystem::exists(fmt::format("{}/ckpt/s{:012}.g00000001.a01", root.path(), step)); };
  const CheckpointOptions checkpoint{.directory = root.path()};
  bool at_four = false, at_five = false, at_six = false;
  const auto members = run_world({.world = 3, .leave = WorldOptions::Leave{1, 3}},
                                 toy({.plan = toy_plan(1), .checkpoint = checkpoint, .in_slot = [&](Job&, std::uint64_t step, Slot& slot) {
                                        if (slot.index() != 0) return;
                                        if (step == 4) at_four = saved(4);
                                        if (step == 5) at_five = saved(5);
                                        if (step == 6) at_six = saved(6);
                                      }}));
  CHECK(at_four);  // the vote for step 3, the fourth, said it
  CHECK_FALSE(at_five);
  CHECK_FALSE(at_six);
  CHECK(members[1].ready_to_leave_at == std::vector<std::uint64_t>{4});
  CHECK(members[0].ready_to_leave_at.empty());
  CHECK(members[2].ready_to_leave_at.empty());
  CHECK(members[0].outcome->state_hash == run_world({.world = 1}, toy({.plan = toy_plan(1)}))[0].outcome->state_hash);
  const auto without_root = run_world({.world = 2, .leave = WorldOptions::Leave{0, 1}}, toy({.plan = toy_plan(1)}));
  CHECK(without_root[0].ready_to_leave_at == std::vector<std::uint64_t>{2});  // there is nothing to save to
}

TEST_CASE("a member whose node leaves joins no step after the save, until its generation ends or a second passes", "[job]") {
  SharedClock clock;
  Duration waited{};
  WorldOptions world{.world = 2, .leave = WorldOptions::Leave{1, 3}, .clock = &clock};
  world.sleep = [&](Duration time) { waited += time, clock.advance(time); };  // of the member that leaves alone
  const auto members = run_world(world, toy({.plan = toy_plan(1)}));
  CHECK(waited == 1s);  // nobody ended the generation
  CHECK(members[1].ready_to_leave_at == std::vector<std::uint64_t>{4});
  REQUIRE(members[0].outcome.has_value());
}

TEST_CASE("the agent knows how long a member may be away: eight times its longest slot, evaluation or save", "[job]") {
  ManualClock clock;
  FaultyFiles files;
  Duration slot = 1s, evaluation{}, save{}, longest = 1s;
  SECTION("a slot") {}
  SECTION("an evaluation") { longest = evaluation = 3s; }
  SECTION("a save") { longest = save = 7s; }
  bool saves = false;
  files.before = [&](std::uint64_t) {
    if (std::exchange(saves, false)) clock.advance(save);
  };
  ToyOptions options{.plan = toy_plan(0)};
  options.checkpoint = {.directory = "/root", .every = 3};
  options.stop_after = 5;
  options.in_slot = [&](Job&, std::uint64_t step, Slot&) {
    clock.advance(slot);
    saves = step == 2;
  };
  const Program program = toy(options);
  const auto members = run_world({.clock = &clock, .files = &files}, [&](Job& job, Member& me) {
    program(job, me);
    (void)job.evaluate(3, [&](Slot& s) {
      clock.advance(evaluation);
      s.report(1.0f, 1);
    });
  });
  INFO((members[0].failure ? message(*members[0].failure) : ""));
  CHECK_FALSE(members[0].failure.has_value());
  CHECK_FALSE(saves);
  CHECK(members[0].returns_within == 8 * longest);
}

TEST_CASE("a save that fails is told, and training goes on", "[job]") {
  const TemporaryDirectory root;
  const auto members = run_world({.world = 2}, toy({.plan = toy_plan(1),
                                                    .checkpoint = {.directory = root.path(), .every = 2},
                                                    .in_slot = [&](Job& job, std::uint64_t step, Slot& slot) {
                                                      const auto ckpt = std::filesystem::path{root.path()} / "ckpt";
                                                      if (slot.index() != 0) return;
                                                      if (step == 1) std::filesystem::rename(ckpt, root.path() + "/away");
                                                      if (step == 2) std::filesystem::rename(root.path() + "/away", ckpt);
                                                      (void)job;
                                                    }}));
  for (const Member& m : members) {
    INFO((m.failure.has_value() ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
  }
  CHECK(std::any_of(members[0].lines.begin(), members[0].lines.end(),
                    [](const std::string& l) { return contains(l, "could not be saved"); }));
}

TEST_CASE("a save by time comes after the same steps on all ranks: the leader's clock decides, whatever the others' say", "[job]") {
  const TemporaryDirectory root;
  std::vector<ManualClock> clocks(3);
  const auto members = run_world({.world = 3, .clock_of = [&](std::uint32_t rank) -> const Clock& { return clocks[rank]; }},
                                 toy({.plan = toy_plan(1),
                                      .checkpoint = {.directory = root.path(), .interval = 3s, .keep = 10},
                                      .in_slot = [&](Job& job, std::uint64_t, Slot& slot) {
                                        const std::uint32_t rank = JobAccess::rank(job);
                                        if (rank == 0) clocks[0].advance(slot.index() == 0 ? 1s : 0s);
                                        if (rank == 1) clocks[1].advance(100s);
                                      }}));
  for (const Member& m : members) {
    INFO((m.failure.has_value() ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
  }
  std::vector<std::string> saved = PosixFiles{}.list(std::filesystem::path{root.path()} / "ckpt").value();
  for (std::string& name : saved) name = name.substr(0, name.find('.'));
  CHECK(saved == std::vector<std::string>{"s000000000003", "s000000000006", "s000000000007"});
}

TEST_CASE("the pause between tries of a final save grows from 1 s to 30 s and ends with final_wait", "[job]") {
  const Failure full{Code::no_space, Remedy::fix_config, "x"};
  StorageWait save{.wait = 600s, .begun = Instant{} + 5s};
  Instant now = *save.begun;
  std::vector<Duration> pauses;
  for (;;) {
    ++save.tries;
    const auto pause = pause_before_next(save, full, now);
    if (!pause) break;
    pauses.push_back(*pause);
    now += *pause;
  }
  REQUIRE(pauses.size() > 6);
  CHECK(std::vector<Duration>(pauses.begin(), pauses.begin() + 7) == std::vector<Duration>{1s, 2s, 4s, 8s, 16s, 30s, 30s});
  CHECK(now == *save.begun + 600s);  // the last try is at the very end
  CHECK(pauses.size() < 30);
  CHECK_FALSE(pause_before_next({.wait = 0s, .begun = now, .tries = 1}, full, now));
  for (const Code code : {Code::refused, Code::mismatch, Code::invalid_argument, Code::internal, Code::exhausted})
    CHECK_FALSE(pause_before_next({.wait = 600s, .begun = now, .tries = 1}, {code, Remedy::fix_config, "x"}, now));
  for (const Code code : {Code::no_space, Code::not_permitted, Code::not_found, Code::io})
    CHECK(pause_before_next({.wait = 600s, .begun = now, .tries = 1}, {code, Remedy::fix_config, "x"}, now));
  unsigned fences = 0;
  Duration longest{};
  for (StorageWait day{.wait = 24h, .begun = now, .tries = 1}; const auto pause = pause_before_next(day, full, now); ++day.tries) {
    now += *pause, longest = std::max(longest, *pause);
    fences += needs_another_fence(day);
  }
  CHECK(longest == 30s);             // after an outage of any length
  CHECK(fences > 24 * 60 * 2 / 33);  // each try may take three of the 99 names of a step under one fence
}

TEST_CASE("a final save is retried under new names until there is space, and logs cause, remedy and time of each try", "[job]") {
  ManualClock clock;
  FaultyFiles files;
  int paused = 0;
  bool is_full = false;
  files.broken = [&](const Path& path) { return is_full && path.filename() == manifest_file ? ENOSPC : 0; };
  ToyOptions options{.plan = toy_plan(0), .checkpoint = {.directory = "/root"}};
  options.in_slot = [&](Job&, std::uint64_t step, Slot&) { is_full = step == 6; };
  WorldOptions world{.clock = &clock, .files = &files};
  world.sleep = [&](Duration time) {
    clock.advance(time);
    if (++paused == 10) is_full = false;  // in the second pause
  };
  std::optional<std::uint64_t> leaves_at;
  SECTION("the job goes on to its end") {}
  SECTION("a node that is asked to leave says that it can: others may save it") {
    world.leave = WorldOptions::Leave{0, leaves_at.emplace(7)};
  }
  const auto members = run_world(world, toy(options));
  INFO((members[0].failure ? message(*members[0].failure) : ""));
  REQUIRE(members[0].outcome.has_value());
  CHECK(members[0].ready_to_leave_at == (leaves_at ? std::vector<std::uint64_t>{7} : std::vector<std::uint64_t>{}));
  const auto line = [&](std::initializer_list<const char*> parts) {
    return std::any_of(members[0].lines.begin(), members[0].lines.end(), [&](const std::string& l) {
      return std::all_of(parts.begin(), parts.end(), [&](const char* part) { return contains(l, part); });
    });
  };
  CHECK(line({"all 7 steps are done, but try 1 of the final checkpoint failed", "no_space", "free some space",
              "tried again in 1.0 s, and 600.0 s are left"}));
  CHECK(line({"try 2 of the final checkpoint failed", "tried again in 2.0 s, and 599.0 s are left"}));
  CHECK(line({"the final checkpoint is saved, at try 3"}));
  CHECK(files.list("/root/ckpt").value() == std::vector<std::string>{"s000000000007.g00000001.a03"});
}

TEST_CASE("a final save for which there is never space ends the job after the time that it was given", "[job]") {
  ManualClock clock;
  FaultyFiles files;
  bool is_full = false;
  files.broken = [&](const Path& path) { return is_full && path.filename() == manifest_file ? EROFS : 0; };
  ToyOptions options{.plan = toy_plan(0), .checkpoint = {.directory = "/root", .final_wait = 90s}};
  options.in_slot = [&](Job&, std::uint64_t step, Slot&) { is_full = step == 6; };
  WorldOptions world{.clock = &clock, .files = &files};
  world.sleep = [&](Duration time) { clock.advance(time); };
  const auto members = run_world(world, toy(options));
  REQUIRE(members[0].failure.has_value());
  CHECK(members[0].failure->code == Code::not_permitted);
  CHECK(members[0].failure->remedy == Remedy::fix_config);
  CHECK(contains(message(*members[0].failure), "all 7 steps are done, but the final checkpoint could not be saved (8 tries in 90.0 s)"));
  CHECK(clock.now() == Instant{} + 90s);
}

TEST_CASE("a final save of two ranks waits for a directory that is put back", "[job]") {
  const TemporaryDirectory root;
  const std::string away = root.path() + "/away", ckpt = root.path() + "/ckpt", gens = root.path() + "/gens";
  std::mutex mutex;
  int paused = 0;
  WorldOptions world{.world = 2};
  bool is_fence_alone = false;
  SECTION("the checkpoints") {}
  SECTION("the fences: the next try claims another, for the state is here") { is_fence_alone = true; }
  world.sleep = [&](Duration time) {
    const std::lock_guard lock{mutex};
    if (++paused == 2 && !is_fence_alone) std::filesystem::remove_all(ckpt), std::filesystem::rename(away, ckpt);
    (void)time;
    std::this_thread::sleep_for(20ms);
  };
  const auto members = run_world(
      world,
      toy({.plan = toy_plan(1), .checkpoint = {.directory = root.path(), .every = 2}, .in_slot = [&](Job&, std::uint64_t step, Slot& slot) {
             if (slot.index() != 0 || step != 6) return;
             if (is_fence_alone) std::filesystem::remove_all(gens);
             else std::filesystem::rename(ckpt, away);
           }}));
  for (const Member& m : members) {
    INFO((m.failure.has_value() ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
  }
  CHECK(std::any_of(members[0].lines.begin(), members[0].lines.end(),
                    [](const std::string& l) { return contains(l, "the final checkpoint is saved, at try"); }));
}

TEST_CASE("a checkpoint of another numeric class is refused with 78, and the message says what that is", "[job]") {
  const TemporaryDirectory root;
  Plan plan = toy_plan(1);
  plan.steps = 1, plan.numeric = "mine 1";
  REQUIRE(run_world({}, toy({.plan = plan, .checkpoint = {.directory = root.path()}}))[0].outcome.has_value());
  plan.numeric = "mine 2";
  for (const Member& m : run_world({.world = 2, .generation = 2}, toy({.plan = plan, .checkpoint = {.directory = root.path()}}))) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(exit_code(*m.failure) == 78);
    CHECK(contains(m.failure->what, "program.numeric: the checkpoint has mine 1, this job has mine 2"));
    CHECK(contains(m.failure->what, "the numeric class"));
  }
}

TEST_CASE("a checkpoint of another plan or model is refused with 78, and both sides are named", "[job]") {
  const TemporaryDirectory root;
  const CheckpointOptions checkpoint{.directory = root.path()};
  Plan plan = toy_plan(1);
  plan.steps = 1;
  REQUIRE(run_world({.world = 2}, toy({.plan = plan, .checkpoint = checkpoint}))[0].outcome.has_value());
  plan.seed = 12;
  const auto other = run_world({.world = 3, .generation = 2}, toy({.plan = plan, .checkpoint = checkpoint}));
  for (const Member& m : other) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(exit_code(*m.failure) == 78);
    CHECK(contains(m.failure->what, "11"));
    CHECK(contains(m.failure->what, "12"));
  }
}

}  // namespace elrun::test
