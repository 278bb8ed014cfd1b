// Out-of-contract use of a job: a clear error and exit code 78, never wrong numbers. One row per misuse.

#include <array>
#include <atomic>
#include <cfenv>
#include <filesystem>
#include <limits>
#include <mutex>

#include "lib/job/declare/agreement.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

/// One member's job on its way: a unit with a tensor that trains, and one that does not.
struct Stage {
  Job& job;
  Unit unit;
  Tensor<float> weight, fixed;

  explicit Stage(Job& j, const Plan& plan = toy_plan(0))
      : job{(j.configure(plan), j)},
        unit{job.unit("layer")},
        weight{unit.tensor<float>("weight", {3, 5})},
        fixed{unit.tensor<float>("fixed", {7}, {.frozen = true})} {}
  Stage& begin() {
    job.seal();
    if (!job.restore()) weight.data()[0] = 1;
    return *this;
  }
  /// The first slot of the first step.
  void in_slot(const std::function<void(Slot&)>& body) {
    auto step = begin().job.next_step();
    for (Slot& slot : step->slots()) body(slot);
  }
  StepResult step(const std::function<void(Slot&)>& body) {
    auto next = job.next_step();
    for (Slot& slot : next->slots()) body(slot), slot.report(1, 1);
    return next->apply(AdamW{}, {.lr = 0.1f});
  }
};

struct Misuse {
  const char* what;
  std::function<void(Job&)> program;
  std::vector<const char*> told;  ///< Parts of the message.
};

const std::vector<Misuse>& misuses() {
  static const std::vector<Misuse> all{
      {"a gradient after its scope",
       [](Job& job) {
         Stage s{job};
         s.in_slot([&](Slot&) {
           { const auto scope = s.unit.use_grad(); }
           s.weight.grad()[0] = 1;
         });
       },
       {"'layer/weight'", "use_grad()"}},
      {"a gradient before its scope",
       [](Job& job) {
         Stage s{job};
         s.in_slot([&](Slot&) { (void)s.weight.grad_span(); });
       },
       {"'layer/weight'", "use_grad()"}},
      {"a gradient in a scope for weights alone",
       [](Job& job) {
         Stage s{job};
         s.in_slot([&](Slot&) {
           const auto scope = s.unit.use();
           s.weight.grad()[0] = 1;
         });
       },
       {"'layer/weight'", "use_grad()"}},
      {"the gradient of what is frozen",
       [](Job& job) {
         Stage s{job};
         s.in_slot([&](Slot&) {
           const auto scope = s.unit.use_grad();
           s.fixed.grad()[0] = 1;
         });
       },
       {"'layer/fixed'", "frozen"}},
      {"weights before seal()", [](Job& job) { Stage{job}.weight.data()[0] = 1; }, {"'layer/weight'", "after seal()"}},
      {"a tensor of no unit",
       [](Job& job) {
         Stage s{job};
         (void)Tensor<float>{}.data();
       },
       {"no unit has declared"}},
      {"a unit used before restore()",
       [](Job& job) {
         Stage s{job};
         job.seal();
         const auto scope = s.unit.use();
       },
       {"use comes after restore()"}},
      {"a gradient outside of a slot",
       [](Job& job) {
         Stage s{job};
         s.begin();
         const auto scope = s.unit.use_grad();
       },
       {"for the slots of a step"}},
      {"a gradient in an evaluation",
       [](Job& job) {
         Stage s{job};
         s.begin();
         (void)job.evaluate(3, [&](Slot&) { const auto scope = s.unit.use_grad(); });
       },
       {"an evaluation has no gradients"}},
      {"a gradient handed off twice",
       [](Job& job) {
         Stage s{job};
         s.in_slot([&](Slot&) {
           { const auto scope = s.unit.use_grad(); }
           { const auto scope = s.unit.use_grad(); }
         });
       },
       {"unit 'layer'", "2. use_grad", "declare {.uses = 2}", "to compute it again, do so inside of one scope"}},
      {"the outcome after a loop that was left early",
       [](Job& job) {
         Stage s{job};
         s.in_slot([](Slot& slot) { slot.report(1, 1); });
         (void)job.outcome();
       },
       {"outcome() comes after next_step() returned nothing", "job.stop()"}},
      {"a scope that outlives its slot",
       [](Job& job) {
         Stage s{job};
         std::vector<UseScope> kept;
         s.in_slot([&](Slot& slot) { kept.push_back(s.unit.use_grad()), slot.report(1, 1); });
       },
       {"slot 0", "unit 'layer'", "let the scope end before the slot"}},
      {"a global batch that is no multiple of the micro-batch",
       [](Job& job) {
         Plan plan = toy_plan(0);
         plan.global_batch = 10, plan.micro_batch = 4;
         job.configure(plan);
       },
       {"micro_batch 4 does not divide global_batch 10", "choose a divisor"}},
      {"a unit after seal()",
       [](Job& job) {
         Stage s{job};
         s.begin(), (void)job.unit("late");
       },
       {"a unit is declared after seal()"}},
      {"a tensor after seal()",
       [](Job& job) {
         Stage s{job};
         s.begin();
         (void)s.unit.tensor<float>("late", {3});
       },
       {"a tensor is declared after seal()"}},
      {"host state after restore()",
       [](Job& job) {
         Stage s{job};
         s.begin();
         int late = 0;
         job.state("late", late);
       },
       {"state is registered after restore()"}},
      {"more host state than goes to a newcomer",
       [](Job& job) {
         static std::array<char, 40 << 20> one, other;
         Stage s{job};
         job.state("one", one);
         job.state("other", other);
       },
       {"state 'other'", "83.9 MB of host state", "64.0 MB", "frozen tensor"}},
      {"a unit before configure()", [](Job& job) { (void)job.unit("early"); }, {"unit comes after configure()"}},
      {"host state before configure()",
       [](Job& job) {
         int early = 0;
         job.state("early", early);
       },
       {"state comes after configure()"}},
      {"a second slots()",
       [](Job& job) {
         Stage s{job};
         auto step = s.begin().job.next_step();
         for (Slot& slot : step->slots()) slot.report(1, 1);
         for (Slot& slot : step->slots()) slot.report(1, 1);
       },
       {"slots() is called twice in one step"}},
      {"a second loop over the same slots",
       [](Job& job) {
         Stage s{job};
         auto step = s.begin().job.next_step();
         auto slots = step->slots();
         for (Slot& slot : slots) slot.report(1, 1);
         for (Slot& slot : slots) slot.report(1, 1);
       },
       {"a second loop goes over the slots"}},
      {"slots() after apply()",
       [](Job& job) {
         Stage s{job};
         auto step = s.begin().job.next_step();
         for (Slot& slot : step->slots()) slot.report(1, 1);
         (void)step->apply(AdamW{}, {.lr = 0.1f});
         (void)step->slots();
       },
       {"slots() is called after apply()"}},
      {"an evaluation of more slots than there are numbers for",
       [](Job& job) {
         Stage s{job};
         s.begin();
         (void)job.evaluate(endless, [](Slot& slot) { slot.report(1, 1); });
       },
       {"evaluate(18446744073709551615)", "slots are above the limit"}},
      {"a schedule without an end",
       [](Job& job) {
         Stage s{job};
         auto step = s.begin().job.next_step();
         for (Slot& slot : step->slots()) slot.report(1, 1);
         (void)step->apply(AdamW{}, {.lr = Schedule{.shape = Schedule::Shape::cosine, .highest = 0.1, .last = 2, .warm_up = 10}});
       },
       {"the schedule of lr", "last is 2", "steps is 0"}},
      {"an empty function as learning rate",
       [](Job& job) {
         Stage s{job};
         auto step = s.begin().job.next_step();
         for (Slot& slot : step->slots()) slot.report(1, 1);
         (void)step->apply(AdamW{}, {.lr = std::function<float(std::uint64_t)>{}});
       },
       {"the schedule of lr", "it is an empty function"}},
      {"a sum in a slot of a step",
       [](Job& job) { Stage{job}.in_slot([](Slot& slot) { slot.add("hits", 1); }); },
       {"add() is for the slots of evaluate()"}},
      {"a sum that is no number",
       [](Job& job) {
         Stage s{job};
         s.begin();
         (void)job.evaluate(3, [](Slot& slot) { slot.add("hits", std::numeric_limits<double>::infinity()); });
       },
       {"add('hits', inf)"}},
      {"a sum without a name",
       [](Job& job) {
         Stage s{job};
         s.begin();
         (void)job.evaluate(3, [](Slot& slot) { slot.add("", 1); });
       },
       {"a name has 1 to 64 bytes"}},
      {"more sums than an evaluation has",
       [](Job& job) {
         Stage s{job};
         s.begin();
         (void)job.evaluate(3, [](Slot& slot) {
           for (int i = 0; i < 65; ++i) slot.add(fmt::format("sum {}", i), 1);
         });
       },
       {"64 sums at most"}},
      {"an audit with an exchange in every slot",
       [](Job& job) {
         Stage s{job, toy_plan(1, 8, Exchange::per_slot)};
         s.begin().job.next_step()->audit(1);
       },
       {"--exchange slot", "Exchange::per_slot", "Exchange::automatic"}},
      {"an audit of sharded gradients",
       [](Job& job) {
         Stage s{job, toy_plan(2)};
         s.begin().job.next_step()->audit(1);
       },
       {"zero(2)"}},
      {"two tensors of one name",
       [](Job& job) {
         Stage s{job};
         (void)s.unit.tensor<float>("weight", {3});
         job.seal();
       },
       {"'weight'"}},
      {"a rounding mode that was changed before a step",
       [](Job& job) {
         Stage s{job};
         s.begin();
         std::fesetround(FE_UPWARD);
         (void)job.next_step();
       },
       {"does not round to nearest", "std::fesetround(FE_TONEAREST)"}},
      {"a rounding mode that a slot changes",
       [](Job& job) {
         Stage s{job};
         s.begin().step([](Slot&) { std::fesetround(FE_DOWNWARD); });
       },
       {"does not round to nearest", "let no slot change it"}},
  };
  return all;
}

}  // namespace

TEST_CASE("each misuse of a job is told, with its remedy, and ends the program with 78", "[job]") {
  for (const Misuse& misuse : misuses()) {
    // Threads of their own end with each world, and the modes that they changed with them.
    const auto members = run_world({}, [&](Job& job, Member&) { misuse.program(job); });
    INFO(misuse.what);
    REQUIRE(members[0].failure.has_value());
    INFO(message(*members[0].failure));
    CHECK(exit_code(*members[0].failure) == 78);
    for (const char* part : misuse.told) CHECK(members[0].failure->what.find(part) != std::string::npos);
  }
}

TEST_CASE("what the table forbids is allowed one step aside", "[job]") {
  const auto members = run_world({.world = 2}, [](Job& job, Member& me) {
    Stage s{job};
    int kept = 0;
    job.state("kept", kept);
    s.begin();
    me.steps.push_back(s.step([&](Slot&) {
      const auto weights = s.unit.use();
      const auto scope = s.unit.use_grad();
      s.weight.grad()[14] = s.weight.data()[0] + s.fixed.data()[6];
    }));
    (void)job.evaluate(3, [&](Slot& slot) {
      const auto scope = s.unit.use();
      slot.report(s.weight.data()[0], 1);
    });
  });
  for (const Member& m : members) {
    INFO((m.failure.has_value() ? message(*m.failure) : ""));
    REQUIRE(m.steps.size() == 1);
    CHECK(m.steps[0].decided);
    CHECK(m.steps[0].norm > 0);
  }
}

TEST_CASE("a rank whose slots change the rounding mode decides nothing, on no rank", "[job]") {
  std::atomic<int> decided{0}, next{0};
  const auto members = run_world({.world = 3}, [&](Job& job, Member&) {
    Stage s{job};
    const bool culprit = next++ == 1;
    decided += s.begin()
                   .step([&](Slot&) {
                     if (culprit) std::fesetround(FE_TOWARDZERO);
                   })
                   .decided;
    (void)job.next_step();
  });
  CHECK(decided == 0);
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK(m.failure->what.find("does not round to nearest") != std::string::npos);
  }
}

TEST_CASE("ranks with differing plans: both are printed, by all", "[job]") {
  struct Row {
    std::function<void(Plan&, CheckpointOptions&, std::uint64_t& size)> change;
    std::vector<const char*> told;
  };
  const std::vector<Row> rows{
      {[](Plan& p, auto&, auto&) { p.seed = 99, p.numeric = "mine 2"; }, {"another plan", ": seed: 11", ": seed: 99", "mine 2"}},
      {[](Plan& p, auto&, auto&) { p.steps = 99; }, {"number of steps", ": steps: 7", ": steps: 99"}},
      {[](Plan& p, auto&, auto&) { p.placement = zero(1); }, {"another placement", "optimizer: sharded", "optimizer: replicated"}},
      {[](Plan& p, auto&, auto&) { p.memory_per_rank = 4096; }, {"another placement", ": memory_per_rank: 0", ": memory_per_rank: 4096"}},
      {[](auto&, CheckpointOptions& c, auto&) { c.directory = "/nonexistent"; }, {"checkpoint options", "''", "'/nonexistent'"}},
      {[](auto&, auto&, std::uint64_t& size) { size = 11; }, {"another model", "u/t: 10,", "u/t: 11,"}}};
  for (const Row& row : rows) {
    std::atomic<int> next{0};
    const auto members = run_world({.world = 3}, [&](Job& job, Member&) {
      Plan plan = toy_plan(0);
      CheckpointOptions checkpoint;
      std::uint64_t size = 10;
      if (next++ == 1) row.change(plan, checkpoint, size);  // members are alike; whoever comes second is changed
      job.configure(plan, checkpoint);
      (void)job.unit("u").tensor<float>("t", {size});
      job.seal();
      (void)job.restore();
    });
    for (const Member& m : members) {
      REQUIRE(m.failure.has_value());
      INFO(message(*m.failure));
      CHECK(exit_code(*m.failure) == 78);
      CHECK(m.failure->what.find("\nrank 0: ") != std::string::npos);
      for (const char* part : row.told) CHECK(m.failure->what.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("a relative checkpoint directory that is another one on one rank is refused, and both are printed", "[job]") {
  const Path here = std::filesystem::current_path();
  std::mutex configuring;  // the working directory is the process's
  int next = 0;
  const auto members = run_world({.world = 2}, [&](Job& job, Member&) {
    {
      const std::lock_guard lock{configuring};
      if (next++ == 1) std::filesystem::current_path("/");
      job.configure(toy_plan(0), {.directory = "nowhere", .final_wait = 0s});
      std::filesystem::current_path(here);
    }
    (void)job.unit("u").tensor<float>("t", {3});
    job.seal();
    (void)job.restore();
  });
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(exit_code(*m.failure) == 78);
    for (const std::string& part : {std::string{"has another checkpoint directory than rank 0"}, std::string{"give an absolute path"},
                                    ": directory: " + (here / "nowhere").string(), std::string{": directory: /nowhere"}})
      CHECK(m.failure->what.find(part) != std::string::npos);
  }
  CHECK_FALSE(std::filesystem::exists("nowhere"));
}

TEST_CASE("one rank that leaves the exchange to memory, and one that does not, are told so where memory decides", "[job]") {
  for (const Exchange other : {Exchange::per_step, Exchange::per_slot}) {
    std::atomic<int> next{0};
    const auto members = run_world({.world = 2}, [&](Job& job, Member& me) {
      Plan plan = toy_plan(1);
      plan.memory_per_rank = 1;
      if (next++ == 1) plan.placement.exchange = other;
      toy({.plan = plan})(job, me);
    });
    for (const Member& m : members) {
      REQUIRE(m.failure.has_value());
      INFO(message(*m.failure));
      CHECK(exit_code(*m.failure) == 78);
      CHECK(m.failure->what.find("another placement") != std::string::npos);
      CHECK(m.failure->what.find("gradients: replicated, exchanged as memory_per_rank allows") != std::string::npos);
    }
  }
}

TEST_CASE("of two texts the lines are told that only one of them has", "[job]") {
  CHECK(difference("a", "x: 1\ny: 2\n", "b", "x: 1\ny: 3\n") == "a: y: 2\nb: y: 3");
  CHECK(difference("a", "x\n", "b", "x\nz\n") == "b: z");
  CHECK(difference("a", "x\ny\n", "b", "y\nx\n") == "the same lines in another order");
  std::string many;
  for (int i = 0; i < 9; ++i) many += fmt::format("line {}\n", i);
  CHECK(difference("a", many, "b", "") == "a: line 0\na: line 1\na: line 2\na: line 3\na: line 4\na: and 4 more");
}

TEST_CASE("more workers than slots is no misuse: the surplus waits", "[job]") {
  const auto few = run_world({.world = 1}, toy({.plan = toy_plan(1, 2)})), many = run_world({.world = 5}, toy({.plan = toy_plan(1, 2)}));
  for (const Member& m : many) {
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == few[0].outcome->state_hash);
  }
}

}  // namespace elrun::test
