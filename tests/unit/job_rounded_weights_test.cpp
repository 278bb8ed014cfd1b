// Weights of which the program sees bf16, beside masters of float: the bits are those of a program that rounds float weights itself, in every world, placement and history.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lib/job/declare/memory_table.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

ToyOptions with_weights(ToyWeights weights, const Plan& plan) { return {.plan = plan, .weights = weights}; }

std::uint64_t right_state(const Plan& plan) {
  const auto members = run_world({.world = 1}, toy(with_weights(ToyWeights::rounded_by_the_program, plan)));
  REQUIRE(members[0].outcome.has_value());
  return members[0].outcome->state_hash;
}

struct Case {
  Placement placement;
  std::uint32_t world;
  std::vector<std::uint32_t> nodes{};
};
std::vector<Case> cases() {
  std::vector<Case> out;
  for (const std::uint32_t world : {1u, 2u, 3u, 4u}) {
    for (const int stage : {0, 1, 2, 3}) out.push_back({zero(stage), world});
    out.push_back({zero(3, Exchange::per_step), world});
    out.push_back({mirrored(zero(3)), world});
  }
  for (const int stage : {2, 3}) out.push_back({hybrid(zero(stage)), 4, {0, 0, 1, 1}});
  return out;
}

std::vector<std::string> failures_of(const Program& program, std::uint32_t world = 1) {
  std::vector<std::string> out;
  for (const Member& m : run_world({.world = world}, program)) out.push_back(m.failure ? m.failure->what : "");
  return out;
}

}  // namespace

TEST_CASE("weights in bf16 give the bits of a program that rounds float weights itself, in every world and placement", "[rounded]") {
  const bool overlap = GENERATE(false, true);
  const DType leaves = GENERATE(DType::f32, DType::bf16);
  Plan plan = toy_plan(0);
  plan.steps = 4, plan.overlap = overlap, plan.leaves = leaves;
  const std::uint64_t right = right_state(plan);
  CHECK(right != run_world({.world = 1}, toy(with_weights(ToyWeights::f32, plan)))[0].outcome->state_hash);
  for (const Case& c : cases()) {
    plan.placement = c.placement;
    for (const Member& m : run_world({.world = c.world, .nodes = c.nodes}, toy(with_weights(ToyWeights::bf16, plan)))) {
      INFO("world " << c.world << (m.failure ? message(*m.failure) : ""));
      REQUIRE(m.outcome.has_value());
      CHECK(m.outcome->state_hash == right);
    }
  }
}

TEST_CASE("evaluations see the rounded weights too", "[rounded]") {
  Plan plan = toy_plan(3);
  plan.steps = 3;
  ToyOptions options = with_weights(ToyWeights::rounded_by_the_program, plan);
  options.evaluates = options.evaluates_in_step = options.evaluates_first = true;
  const auto expected = run_world({.world = 1}, toy(options));
  options.weights = ToyWeights::bf16;
  for (const std::uint32_t world : {1u, 3u})
    for (const Member& m : run_world({.world = world}, toy(options))) {
      REQUIRE(m.outcome.has_value());
      CHECK(m.outcome->state_hash == expected[0].outcome->state_hash);
    }
}

TEST_CASE("worlds that lose and get members end with the same bits", "[rounded]") {
  for_all_seeds(20, [&](Rng& rng) {
    Plan plan = toy_plan(static_cast<int>(rng.below(4)), 6);
    plan.steps = 5, plan.overlap = rng.chance(0.5);
    if (rng.chance(0.3)) plan.placement = mirrored(zero(1 + static_cast<int>(rng.below(3))));
    const TemporaryDirectory root;
    ToyOptions options = with_weights(ToyWeights::bf16, plan);
    if (rng.chance(0.5)) options.checkpoint = {.directory = root.path(), .every = 2};
    std::vector<Fate> fates;
    for (int i = 0; i < 3; ++i)
      fates.push_back(
          {rng.chance(0.6) ? Fate::Kind::dies : Fate::Kind::grows, static_cast<std::uint32_t>(rng.below(4)), rng.below(60), true});
    Plan alone = plan;
    alone.placement = zero(0);
    const std::uint64_t right = right_state(alone);
    ElasticWorld world{1 + static_cast<std::uint32_t>(rng.below(3)), fates, toy(options)};
    const auto& results = world.wait();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (world.was_killed(i) || world.was_refused(i)) continue;
      INFO((results[i].failure ? message(*results[i].failure) : ""));
      REQUIRE(results[i].outcome.has_value());
      CHECK(results[i].outcome->state_hash == right);
    }
  });
}

TEST_CASE("in a scope a tensor of bf16 is what its masters round to, and out of it there is none", "[rounded]") {
  const int stage = GENERATE(0, 1, 3);
  Plan plan = toy_plan(stage);
  plan.steps = 1, plan.micro_batch = plan.global_batch / 2;
  std::atomic<int> seen{0};
  const auto members = run_world({.world = 2}, [&](Job& job, Member& me) {
    job.configure(plan);
    Unit unit = job.unit("u");
    const Tensor<bf16> a = unit.tensor<bf16>("a", {3, 700}), b = unit.tensor<bf16>("b", {5});
    const Tensor<float> fixed = unit.tensor<float>("fixed", {4}, {.frozen = true});
    job.seal();
    const auto throws = [](const auto& call) {
      try {
        call();
      } catch (const Error& e) {
        return contains(e.failure().what, "unit.use()") || contains(e.failure().what, "elements");
      }
      return false;
    };
    std::vector<float> values(2100), five{1.0f, -1.0f, 1.00390625f, 1.01171875f, 0x1.fffffep127f};  // ties to even, and beyond the largest
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = job.rng("a").normal(i);
    if (!job.restore()) {
      const auto scope = unit.use();
      a.set(values);
      b.set(five);
      fixed.set(std::vector<float>{1, 2, 3, 4});
      must(throws([&] { b.set(std::vector<float>(4)); }), "another size is refused");
      for (std::size_t i = 0; i < values.size(); ++i) must(a.data()[i] == to_bf16(values[i]), "what was set is seen rounded");
    }
    must(throws([&] { (void)a.data(); }), "out of scope there is none");
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        const auto scope = unit.use_grad();
        must(std::ranges::equal(a.span(), values, {}, {}, [](float x) { return to_bf16(x); }), "each scope has them");
        must(b.data()[2] == to_bf16(1.0f) && b.data()[3] == to_bf16(1.015625f) && b.data()[4].bits == 0x7f80, "nearest, ties to even");
        must(fixed.data()[3] == 4.0f, "what is frozen is float");
        static_assert(std::is_same_v<decltype(a.grad()), float*>);
        a.grad()[0] += 1.0f;
        slot.report(1.0f, 1);
        ++seen;
      }
      (void)step->apply(AdamW{}, {.lr = 0.01f});
    }
    me.outcome = job.outcome();
  });
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    CHECK(m.outcome.has_value());
  }
  CHECK(seen == 2);
}

TEST_CASE("what cannot be is refused, and named", "[rounded]") {
  const auto declares = [](const std::function<void(Job&)>& declare) {
    return failures_of([&](Job& job, Member&) {
      job.configure(toy_plan(0));
      declare(job);
      job.seal();
    })[0];
  };
  CHECK(contains(declares([](Job& job) {
                   Unit unit = job.unit("block");
                   (void)unit.tensor<float>("a", {3});
                   (void)unit.tensor<bf16>("b", {3});
                 }),
                 "unit 'block' has tensors of float and of bf16 that train"));
  CHECK(contains(declares([](Job& job) { (void)job.unit("block").tensor<bf16>("a", {3}, {.frozen = true}); }),
                 "'a' of unit 'block' is frozen and bf16"));
  // Rounded weights of before an update would look like those after it.
  CHECK(contains(failures_of([](Job& job, Member&) {
                   job.configure(toy_plan(0));
                   Unit unit = job.unit("block");
                   (void)unit.tensor<bf16>("a", {3});
                   job.seal();
                   (void)job.restore();
                   auto step = job.next_step();
                   for (Slot& slot : step->slots()) {
                     { const auto scope = unit.use_grad(); }
                     slot.report(1, 1);
                   }
                   const auto scope = unit.use();
                   (void)step->apply(AdamW{}, {.lr = 0.01f});
                 })[0],
                 "unit 'block' is still in a use scope at apply()"));
}

TEST_CASE("ranks whose initial masters differ are told apart, also where they round to the same", "[rounded]") {
  for (const int stage : {0, 3}) {
    std::atomic<std::uint32_t> next{0};
    const auto said = failures_of(
        [&](Job& job, Member&) {
          job.configure(toy_plan(stage));
          Unit unit = job.unit("u");
          const Tensor<bf16> a = unit.tensor<bf16>("a", {3});
          job.seal();
          if (!job.restore()) {
            const auto scope = unit.use();
            a.set(std::vector<float>{1, 2, next++ == 0 ? 3.0f : 3.0000002f});
          }
          (void)job.next_step();
        },
        2);
    INFO("zero(" << stage << ")");
    CHECK(std::ranges::any_of(said, [](const std::string& what) { return contains(what, "initialise them from job.rng(name) alone"); }));
  }
}

TEST_CASE("gathered weights in bf16 are half the bytes, and nothing else is less", "[rounded]") {
  const auto sent_by = [](ToyWeights weights, int stage) {
    std::uint64_t sent[2] = {};
    for (const std::uint64_t steps : {1, 2}) {
      Plan plan = toy_plan(stage, 8, Exchange::per_slot);
      plan.steps = steps, plan.overlap = false;
      for (const Member& m : run_world({.world = 4, .bytes_sent = &sent[steps - 1]}, toy(with_weights(weights, plan))))
        REQUIRE(m.outcome.has_value());
    }
    return sent[1] - sent[0];
  };
  CHECK(sent_by(ToyWeights::f32, 2) == sent_by(ToyWeights::bf16, 2));
  // In a step each of four ranks runs two slots, which use the table twice and the block once: all units go to all, but for the part that is there. The head is one granule, which
  // five of the seven slots that use it have to fetch.
  const std::uint64_t table = 5 * granule, block = 3 * granule;
  CHECK(sent_by(ToyWeights::f32, 3) - sent_by(ToyWeights::bf16, 3) == (2 * 3 * (2 * table + block) + 5 * granule) * 2);
}

TEST_CASE("the plan's table counts weights in bf16, and a rank holds what it says", "[rounded]") {
  for (const bool overlap : {false, true})
    for (const int stage : {0, 1, 2, 3})
      for (const std::uint32_t world : {1u, 3u}) {
        Plan plan = toy_plan(stage);
        plan.steps = 1, plan.overlap = overlap;
        std::vector<UnitSpec> units;
        for (const ToyTensor& t : toy_tensors()) {
          if (units.empty() || units.back().name != t.unit) units.push_back({t.unit, {}});
          units.back().tensors.push_back({t.name, t.options.frozen ? DType::f32 : DType::bf16, {t.size}, t.options});
        }
        const auto expected =
            bytes_by_rank(lay_out(units), plan.placement, plan.optimizer, 8, world, 0, Reduce::exact, DType::f32, overlap);
        std::vector<RankBytes> held(world);
        ToyOptions options = with_weights(ToyWeights::bf16, plan);
        options.in_slot = [&](Job& job, std::uint64_t, Slot&) { held[JobAccess::rank(job)] = JobAccess::held(job); };
        for (const Member& m : run_world({.world = world}, toy(options))) REQUIRE(m.outcome.has_value());
        for (std::uint32_t r = 0; r < world; ++r) {
          INFO("zero(" << stage << "), rank " << r << " of " << world << ", overlap " << overlap);
          CHECK(held[r].parameters == expected[r].parameters);
          CHECK(held[r].in_use <= expected[r].in_use + 3 * 4096);  // whole pages
          if (stage < 2) CHECK(held[r].in_use == expected[r].in_use);
        }
      }
  std::string table;
  (void)run_world({.world = 1}, [&](Job& job, Member&) {
    job.configure(toy_plan(0));
    (void)job.unit("a").tensor<bf16>("w", {4096});
    (void)job.unit("b").tensor<float>("w", {2048});
    table = job.plan_table(2);
  });
  CHECK(contains(table, "weights of 1 unit(s) in bf16"));
}

TEST_CASE("a checkpoint holds masters, goes on in another world, and refuses a job with other weights", "[rounded]") {
  const TemporaryDirectory root;
  const CheckpointOptions checkpoint{.directory = root.path()};
  Plan plan = toy_plan(3);
  plan.steps = 2;
  ToyOptions options = with_weights(ToyWeights::bf16, plan);
  options.checkpoint = checkpoint;
  REQUIRE(run_world({.world = 3}, toy(options))[0].outcome.has_value());
  std::size_t floats = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator{root.path()}) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream in{entry.path(), std::ios::binary};
    const std::string text{std::istreambuf_iterator<char>{in}, {}};
    floats += contains(text, "\"F32\"");
    CHECK_FALSE(contains(text, "BF16"));
  }
  CHECK(floats > 0);
  options.plan.steps = 5, options.plan.placement = zero(1);
  Plan alone = options.plan;
  alone.placement = zero(0);
  for (const Member& m : run_world({.world = 2, .generation = 2}, toy(options))) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.steps.size() == 3);
    CHECK(m.outcome->state_hash == right_state(alone));
  }
  options.weights = ToyWeights::f32, options.plan.steps = 6;
  for (const Member& m : run_world({.world = 2, .generation = 3}, toy(options))) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(exit_code(*m.failure) == 78);
    CHECK(contains(m.failure->what, "weights in bf16"));
  }
}

TEST_CASE("a job of hundreds of units in bf16 saves, goes on in another world, and refuses a job with one unit more", "[rounded]") {
  const auto job_of = [](std::size_t count, std::uint64_t steps, const std::string& root) -> Program {
    return [=](Job& job, Member& me) {
      Plan plan = toy_plan(1, 2);
      plan.steps = steps;
      CheckpointOptions checkpoint;
      if (!root.empty()) checkpoint = {.directory = root};
      job.configure(plan, checkpoint);
      std::vector<Unit> units;
      std::vector<Tensor<bf16>> weights;
      for (std::size_t i = 0; i < count; ++i) {
        units.push_back(job.unit(fmt::format("transformer.blocks.{}.feed_forward.projection", i)));
        weights.push_back(units.back().tensor<bf16>("weight", {7}));
      }
      job.seal();
      if (!job.restore())
        for (std::size_t i = 0; i < count; ++i) {
          const auto scope = units[i].use();
          weights[i].set(std::vector<float>(7, 0.01f * static_cast<float>(i + 1)));
        }
      me.steps.clear();
      while (auto step = job.next_step()) {
        for (Slot& slot : step->slots()) {
          for (std::size_t i = 0; i < count; ++i) {
            const auto scope = units[i].use_grad();
            for (float& g : weights[i].grad_span()) g += toy_loss(slot.samples(), slot.rng()) * static_cast<float>(i % 5 + 1);
          }
          slot.report(1.0f, 1);
        }
        if (const StepResult r = step->apply(toy_adamw, toy_options(step->number())); r.decided) me.steps.push_back(r);
      }
      me.outcome = job.outcome();
    };
  };
  constexpr std::size_t units = 600;
  const auto undisturbed = run_world({}, job_of(units, 3, {}));
  REQUIRE(undisturbed[0].outcome.has_value());
  const TemporaryDirectory root;
  REQUIRE(run_world({.world = 2}, job_of(units, 2, root.path()))[0].outcome.has_value());
  for (const Member& m : run_world({.world = 3, .generation = 2}, job_of(units, 3, root.path()))) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.steps.size() == 1);
    CHECK(m.outcome->state_hash == undisturbed[0].outcome->state_hash);
  }
  for (const Member& m : run_world({.world = 2, .generation = 3}, job_of(units + 1, 4, root.path()))) {
    REQUIRE(m.failure.has_value());
    CHECK(exit_code(*m.failure) == 78);
  }
}

}  // namespace elrun::test
