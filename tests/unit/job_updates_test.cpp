// What a program passes to apply() is part of the bits: it is compared between ranks, and with what a step that is done again had.

#include <algorithm>
#include <atomic>
#include <limits>

#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

constexpr float first_rate = 0.1f, factor = 0.95f;

enum class Loop {
  variable,  ///< A rate of the loop's own, as in many programs.
  state,     ///< The same one, registered with the job.
  function,  ///< A function of the step.
};

/// A program that lowers its rate after each step, be it decided or not if `heedless`.
Program decaying(Loop loop, const Plan& plan, const CheckpointOptions& checkpoint = {}, float* outside = nullptr, bool heedless = false) {
  return [=](Job& job, Member& me) {
    Plan wanted = plan;
    wanted.optimizer = Optimizer::sgd;
    job.configure(wanted, checkpoint);
    Unit unit = job.unit("layer");
    const auto weight = unit.tensor<float>("weight", {3001});
    float inside = first_rate;
    float& lr = outside != nullptr ? *outside : inside;
    if (loop == Loop::state) job.state("lr", lr);
    me.steps.clear();
    job.seal();
    if (!job.restore()) {
      const auto scope = unit.use();
      for (std::uint64_t i = 0; i < weight.size(); ++i) weight.data()[i] = static_cast<float>(i % 11) * 0.25f;
    }
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        const auto scope = unit.use_grad();
        add_toy_gradient(weight.grad_span(), weight.span(), slot.samples(), slot.rng(), 1);
        slot.report(1, 1);
      }
      const auto rate = [](std::uint64_t s) {
        float now = first_rate;
        for (std::uint64_t i = 0; i < s; ++i) now *= factor;
        return now;
      };
      const StepResult r = loop == Loop::function ? step->apply(Sgd{}, {.lr = rate}) : step->apply(Sgd{}, {.lr = lr});
      if (r.decided || heedless) lr *= factor;
      if (r.decided) me.steps.push_back(r);
    }
    me.outcome = job.outcome();
  };
}

/// Of those who were not killed, all ended with this error.
void check_told(std::deque<Member>& results, const ElasticWorld& world, const std::vector<std::string_view>& parts) {
  std::size_t told = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (world.was_killed(i)) continue;
    CHECK_FALSE(results[i].outcome.has_value());
    REQUIRE(results[i].failure.has_value());
    INFO("member " << i << ": " << message(*results[i].failure));
    if (results[i].failure->code == Code::generation_over) continue;  // heard of it from the others
    ++told;
    CHECK(exit_code(*results[i].failure) == 78);
    CHECK(contains(results[i].failure->what, "job.state(name, variable)"));
    for (const std::string_view part : parts) CHECK(contains(results[i].failure->what, part));
  }
  CHECK(told > 0);
}

UpdateValues sgd_values(float lr, Sgd options = {}) { return values_of(options, {.lr = lr}); }

}  // namespace

TEST_CASE("values of an update differ by their bits, and each that differs is named with both", "[job]") {
  const auto check = [](std::vector<UpdateReport> said) { return check_update(12, said); };
  const UpdateValues a = sgd_values(0.1f), b = sgd_values(std::nextafter(0.1f, 1.0f));
  CHECK(check({}).ok());
  CHECK(check({{a, {}}, {a, {}}, {a, a}}).ok());
  const auto between = check({{a, {}}, {a, {}}, {b, {}}});
  REQUIRE_FALSE(between.ok());
  CHECK(contains(between.failure().what, "step 12 was not applied: lr is 0.1 on rank 0 and 0.10000001 on rank 2."));
  const auto again = check({{a, {}}, {a, b}});
  REQUIRE_FALSE(again.ok());
  CHECK(contains(again.failure().what, "lr was 0.10000001 when this step was decided before, and is 0.1 on rank 0 now"));
  const auto both = check({{a, {}}, {b, b}});
  REQUIRE_FALSE(both.ok());
  CHECK(contains(both.failure().what, "lr is 0.1 on rank 0 and 0.10000001 on rank 1; lr was 0.10000001 when"));
  const auto tried = check({{a, {}, a}, {a, {}, b}});
  REQUIRE_FALSE(tried.ok());
  CHECK(contains(tried.failure().what,
                 "lr was 0.10000001 on rank 1 when apply() was called for this step before and the world was lost, and is 0.1 now"));
  const auto newcomer = check({{b, {}, a}, {a, {}, a}});
  REQUIRE_FALSE(newcomer.ok());
  CHECK(contains(newcomer.failure().what,
                 "lr is 0.10000001 on rank 0 and 0.1 on rank 1; lr was 0.1 on rank 0 when apply() was called for this step before"));
  // Signs of zero make other bits.
  CHECK_FALSE(check({{sgd_values(0.0f), {}}, {sgd_values(-0.0f), {}}}).ok());

  const auto options = check({{sgd_values(0.1f), {}}, {sgd_values(0.2f, {.momentum = 0.5f, .nesterov = true, .weight_decay = 1}), {}}});
  REQUIRE_FALSE(options.ok());
  for (const char* part : {"lr is 0.1 on rank 0 and 0.2 on", "momentum is 0.9 on rank 0 and 0.5", "nesterov is false on rank 0 and true",
                           "weight_decay is 0 on rank 0 and 1"})
    CHECK(contains(options.failure().what, part));
  const UpdateValues adamw = values_of(AdamW{}, {.lr = 1, .clip_norm = 2}),
                     other = values_of(AdamW{.beta1 = 0.5f, .beta2 = 0.5f, .epsilon = 1, .weight_decay = 0}, {.lr = 1, .clip_norm = 3});
  const auto all = check({{adamw, {}}, {other, {}}});
  for (const char* part : {"clip_norm is 2 on rank 0 and 3", "beta1 is 0.9", "beta2 is 0.95", "epsilon is 1e-08", "weight_decay is 0.1"})
    CHECK(contains(all.failure().what, part));
  const auto kinds = check({{adamw, {}}, {values_of(Lion{}, {.lr = 1}), {}}});
  CHECK(contains(kinds.failure().what, "the optimizer is adamw on rank 0 and lion on rank 1"));
}

TEST_CASE("a step that members decided with other values in two generations is told", "[job]") {
  const UpdateValues a = sgd_values(0.1f), b = sgd_values(0.2f);
  CHECK(check_decided_update(4, std::vector<UpdateValues>{a, {}, a}).ok());
  CHECK(check_decided_update(4, std::vector<UpdateValues>{{}, {}}).ok());
  const auto told = check_decided_update(4, std::vector<UpdateValues>{{}, a, b});
  REQUIRE_FALSE(told.ok());
  CHECK(contains(told.failure().what, "step 4"));
  CHECK(contains(told.failure().what, "lr was 0.1 on rank 1 and 0.2 on rank 2"));
}

TEST_CASE("the memory of updates keeps runs of equal values, and forgets the oldest beyond its bound", "[job]") {
  UpdateMemory memory;
  const UpdateValues a = sgd_values(0.1f), b = sgd_values(0.2f);
  for (std::uint64_t s = 10; s < 1000; ++s) memory.remember(s, a);
  CHECK(memory.places() == 1);
  CHECK(memory.of(10) == a);
  CHECK(memory.of(999) == a);
  CHECK_FALSE(memory.of(9).known());
  CHECK_FALSE(memory.of(1000).known());
  memory.remember(8, a), memory.remember(9, a);  // gone back to an earlier checkpoint
  CHECK(memory.places() == 1);
  memory.remember(500, b);
  CHECK(memory.places() == 3);
  CHECK(memory.of(500) == b);
  CHECK((memory.of(499) == a && memory.of(501) == a));
  memory.remember(500, a);
  CHECK(memory.of(500) == a);
  CHECK(memory.of(8) == a);
  UpdateMemory many;
  for (std::uint64_t s = 0; s < UpdateMemory::places_max + 5; ++s) many.remember(s, sgd_values(static_cast<float>(s)));
  CHECK(many.places() == UpdateMemory::places_max);
  CHECK_FALSE(many.of(4).known());
  CHECK(many.of(5) == sgd_values(5));
}

TEST_CASE("the first values that are tried for a step are kept until another step is tried", "[job]") {
  UpdateMemory memory;
  CHECK_FALSE(memory.tried(0).known());
  const UpdateValues a = sgd_values(0.1f), b = sgd_values(0.2f);
  memory.try_first(3, a), memory.try_first(3, b);
  CHECK(memory.tried(3) == a);
  CHECK_FALSE(memory.tried(4).known());
  memory.try_first(4, b);
  CHECK(memory.tried(4) == b);
  CHECK_FALSE(memory.tried(3).known());
}

TEST_CASE("a rate that changes after each apply(), decided or not, is told when the step is done again", "[job][elastic]") {
  // apply() is called in the world that is lost, and again in the next one, where a newcomer would differ from the survivors at once.
  for (const std::uint64_t at : {9, 10, 11}) {
    INFO("at exchange " << at);
    ElasticWorld world{3, {{Fate::Kind::dies, 1, at, false}}, decaying(Loop::variable, toy_plan(0), {}, nullptr, true)};
    auto& results = world.wait();
    check_told(results, world, {"when apply() was called for this step before"});
    ElasticWorld kept{3, {{Fate::Kind::dies, 1, at, true}}, decaying(Loop::state, toy_plan(0), {}, nullptr, true)};
    for (const Member& m : kept.wait()) {
      INFO((m.failure ? message(*m.failure) : ""));
      CHECK_FALSE(m.failure.has_value());
    }
  }
}

TEST_CASE("ranks that pass other values to apply() decide nothing, and all say which values", "[job]") {
  struct Row {
    std::function<void(Sgd&, ApplyOptions&)> change;
    const char* told;
  };
  const std::vector<Row> rows{{[](Sgd&, ApplyOptions& o) { o.lr = 0.25f; }, "lr is "},
                              {[](Sgd&, ApplyOptions& o) { o.clip_norm = 3; }, "clip_norm is "},
                              {[](Sgd& sgd, ApplyOptions&) { sgd.momentum = 0.5f; }, "momentum is "},
                              {[](Sgd& sgd, ApplyOptions&) { sgd.nesterov = true; }, "nesterov is "},
                              {[](Sgd& sgd, ApplyOptions&) { sgd.weight_decay = 0.5f; }, "weight_decay is "}};
  for (const Row& row : rows)
    for (const int stage : {0, 1, 3}) {
      std::atomic<int> next{0}, decided{0};
      const auto members = run_world({.world = 3}, [&](Job& job, Member&) {
        Plan plan = toy_plan(stage);
        plan.optimizer = Optimizer::sgd;
        job.configure(plan);
        Unit unit = job.unit("layer");
        (void)unit.tensor<float>("weight", {3001});
        job.seal();
        (void)job.restore();
        Sgd sgd;
        ApplyOptions options{.lr = 0.125f};
        if (next++ == 1) row.change(sgd, options);
        auto step = job.next_step();
        for (Slot& slot : step->slots()) {
          const auto scope = unit.use_grad();
          slot.report(1, 1);
        }
        decided += step->apply(sgd, options).decided;
      });
      CHECK(decided == 0);
      for (const Member& m : members) {
        REQUIRE(m.failure.has_value());
        INFO(message(*m.failure));
        CHECK(exit_code(*m.failure) == 78);
        CHECK(contains(m.failure->what, "step 0 was not applied"));
        CHECK(contains(m.failure->what, row.told));
        CHECK(contains(m.failure->what, "job.state(name, variable)"));
      }
    }
}

TEST_CASE("a rate that the loop keeps for itself is told when a worker is started again, and bends no bit", "[job][elastic]") {
  for (const int stage : {0, 1}) {
    const TemporaryDirectory root;
    const CheckpointOptions checkpoint{.directory = root.path(), .every = 2};
    // Any exchange from the 23rd to the 44th would do, as a probe showed.
    ElasticWorld world{3, {{Fate::Kind::dies, 1, 35, true}}, decaying(Loop::variable, toy_plan(stage), checkpoint)};
    check_told(world.wait(), world, {"lr is ", " on rank 0 and 0.1 on rank "});
  }
}

TEST_CASE("a rate that the loop keeps for itself is told when decided steps are done again", "[job][elastic]") {
  const TemporaryDirectory root;
  // Nobody comes: the survivors alone go back, with the rate that they have. Any exchange from the 29th to the 39th would do, as a probe showed.
  ElasticWorld world{3, {{Fate::Kind::dies, 1, 34, false}}, decaying(Loop::variable, toy_plan(1), {.directory = root.path(), .every = 3})};
  check_told(world.wait(), world, {"was not applied", "when this step was decided before, and is "});
}

TEST_CASE("with Reduce::fast a rate that is host state may follow from weights that are others when steps are done again",
          "[job][elastic]") {
  const auto program = [](const CheckpointOptions& checkpoint) -> Program {
    return [checkpoint](Job& job, Member& me) {
      Plan plan = toy_plan(1);
      plan.reduce = Reduce::fast;
      job.configure(plan, checkpoint);
      Unit unit = job.unit("layer");
      const auto weight = unit.tensor<float>("weight", {3001});
      float rate = first_rate;
      job.state("rate", rate);
      job.seal();
      if (!job.restore()) std::ranges::fill(weight.span(), 1.0f);
      while (auto step = job.next_step()) {
        for (Slot& slot : step->slots()) {
          const auto scope = unit.use_grad();
          add_toy_gradient(weight.grad_span(), weight.span(), slot.samples(), slot.rng(), 1);
          slot.report(1, 1);
        }
        if (!step->apply(toy_adamw, {.lr = rate}).decided) continue;
        const Evaluation e = job.evaluate(1, [&](Slot& slot) {
          std::uint32_t bits = 0;
          for (const float w : weight.span()) bits = 31 * bits + std::bit_cast<std::uint32_t>(w);
          slot.report(static_cast<float>(bits % 1024), 1);
        });
        if (e.decided) rate = first_rate * (1 + e.loss / 2048);
      }
      me.outcome = job.outcome();
    };
  };
  for (const bool saves : {true, false}) {
    const TemporaryDirectory root;
    CheckpointOptions checkpoint;
    if (saves) checkpoint = {.directory = root.path(), .every = 3};
    // Nobody comes: the survivors alone do steps again that three had decided.
    ElasticWorld world{3, {{Fate::Kind::dies, 1, saves ? 50u : 30u, false}}, program(checkpoint)};
    const auto& results = world.wait();
    INFO((saves ? "with" : "without") << " checkpoints");
    for (const std::size_t survivor : {0u, 2u}) {
      INFO((results[survivor].failure ? message(*results[survivor].failure) : ""));
      REQUIRE(results[survivor].outcome.has_value());
      CHECK(results[survivor].outcome->state_hash == results[0].outcome->state_hash);
    }
    CHECK(std::ranges::any_of(world.lines(), [](const std::string& l) { return contains(l, "was lost with rank "); }));
  }
}

TEST_CASE("a rate that outlives the program's run is told when the job begins again from nothing", "[job][elastic]") {
  static std::array<float, 8> rates;  // as a global variable of each process
  rates.fill(first_rate);
  std::atomic<std::size_t> born{0};
  ElasticWorld world{2, {{Fate::Kind::dies, 1, 20, false}}, [&](Job& job, Member& me) {
                       thread_local float* mine = nullptr;
                       if (mine == nullptr) mine = &rates[born++];
                       decaying(Loop::variable, toy_plan(1), {}, mine)(job, me);
                     }};
  check_told(world.wait(), world, {"step 0 was not applied", "lr was 0.1 when this step was decided before"});
}

TEST_CASE("a rate that is host state, or a function of the step, has the bits of the undisturbed run", "[job][elastic]") {
  for (const int stage : {0, 1}) {
    const auto undisturbed = run_world({.world = 1}, decaying(Loop::variable, toy_plan(stage)));
    REQUIRE(undisturbed[0].outcome.has_value());
    for (const Loop loop : {Loop::state, Loop::function})
      for (const std::uint64_t at : {10u, 25u, 36u})
        for (const bool comes_back : {true, false}) {
          const TemporaryDirectory root;
          ElasticWorld world{
              3, {{Fate::Kind::dies, 1, at, comes_back}}, decaying(loop, toy_plan(stage), {.directory = root.path(), .every = 3})};
          auto& results = world.wait();
          for (std::size_t i = 0; i < results.size(); ++i) {
            if (world.was_killed(i)) continue;
            INFO("zero(" << stage << "), at exchange " << at << ", member " << i
                         << (results[i].failure ? ": " + message(*results[i].failure) : ""));
            REQUIRE(results[i].outcome.has_value());
            CHECK(results[i].outcome->state_hash == undisturbed[0].outcome->state_hash);
          }
        }
  }
}

TEST_CASE("a checkpoint carries the values of its last step", "[job]") {
  const TemporaryDirectory root;
  const CheckpointOptions checkpoint{.directory = root.path(), .every = 3};
  Plan plan = toy_plan(1);
  plan.steps = 6;
  for (const Member& m : run_world({.world = 2}, decaying(Loop::function, plan, checkpoint))) REQUIRE(m.outcome.has_value());
  std::atomic<int> knew{0};
  (void)run_world({.world = 3}, [&](Job& job, Member&) {
    Plan same = plan;
    same.optimizer = Optimizer::sgd;
    job.configure(same, checkpoint);
    (void)job.unit("layer").tensor<float>("weight", {3001});
    job.seal();
    must(bool{job.restore()}, "there is no checkpoint");
    float last = first_rate;
    for (int i = 0; i < 5; ++i) last *= factor;
    knew += JobAccess::remembered(job, 0) == sgd_values(first_rate) && JobAccess::remembered(job, 5) == sgd_values(last) &&
            !JobAccess::remembered(job, 4).known();
  });
  CHECK(knew == 3);
}

TEST_CASE("a job that begins at a checkpoint with the values of step 0 says so", "[job]") {
  for (const Loop loop : {Loop::variable, Loop::state, Loop::function}) {
    const TemporaryDirectory root;
    const CheckpointOptions checkpoint{.directory = root.path(), .every = 2};
    Plan plan = toy_plan(1);
    (void)run_world({.world = 2, .death = WorldOptions::Death{0, 40}}, decaying(loop, plan, checkpoint));
    bool told = false;
    for (const Member& m : run_world({.world = 2}, decaying(loop, plan, checkpoint)))
      for (const std::string& line : m.lines) told |= contains(line, "lr is 0.1, as in step 0, and was ");
    CHECK(told == (loop == Loop::variable));
  }
}

TEST_CASE("a rate is a number, a schedule or a function of the step", "[job]") {
  const auto rate = [](ApplyOptions options, std::uint64_t step) { return options.lr.at(step); };
  CHECK(rate({}, 7) == 0.0f);
  CHECK(rate({.lr = 0.5f}, 7) == 0.5f);
  CHECK(rate({.lr = 0}, 7) == 0.0f);
  CHECK(rate({.lr = Schedule{.highest = 1, .warm_up = 4}}, 1) == 0.5f);
  CHECK(rate({.lr = [](std::uint64_t s) { return static_cast<float>(s) * 2; }}, 3) == 6.0f);
}

TEST_CASE("a function of the step that gives no number is told", "[job]") {
  const auto members = run_world({}, decaying(Loop::function, toy_plan(0)));
  REQUIRE(members[0].outcome.has_value());
  const auto wrong = run_world({}, [](Job& job, Member&) {
    Plan plan = toy_plan(0);
    plan.optimizer = Optimizer::sgd;
    job.configure(plan);
    (void)job.unit("layer").tensor<float>("weight", {3});
    job.seal();
    (void)job.restore();
    auto step = job.next_step();
    for (Slot& slot : step->slots()) slot.report(1, 1);
    step->apply(Sgd{}, {.lr = [](std::uint64_t) { return std::numeric_limits<float>::quiet_NaN(); }});
  });
  REQUIRE(wrong[0].failure.has_value());
  CHECK(exit_code(*wrong[0].failure) == 78);
  CHECK(contains(wrong[0].failure->what, "lr is nan; it must be a number"));
}

}  // namespace elrun::test
