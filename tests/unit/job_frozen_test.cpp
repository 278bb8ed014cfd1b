// What is frozen may be written after a decided step: a running mean, say. Newcomers have it as all others do.

#include <algorithm>

#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

/// After each step a mean of the losses, in every element of a frozen tensor. `evaluates`: how often before that.
Program running_mean(int stage, int evaluates) {
  return [=](Job& job, Member& me) {
    Plan plan = toy_plan(stage);
    plan.steps = 6;
    job.configure(plan);
    Unit unit = job.unit("layer");
    const auto weight = unit.tensor<float>("weight", {3001}), mean = unit.tensor<float>("mean", {2003}, {.frozen = true});
    job.seal();
    if (!job.restore()) {
      const auto scope = unit.use();
      std::ranges::fill(weight.span(), 1.0f), std::ranges::fill(mean.span(), 1.0f);
    }
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        const auto scope = unit.use_grad();
        add_toy_gradient(weight.grad_span(), weight.span(), slot.samples(), slot.rng(), 1);
        slot.report(toy_loss(slot.samples(), slot.rng()) + mean.span()[1500], 1);
      }
      const StepResult r = step->apply(toy_adamw, {.lr = 0.01f});
      bool is_decided = r.decided;
      for (int i = 0; i < evaluates && is_decided; ++i)
        is_decided = job.evaluate(10, [&](Slot& slot) { slot.report(mean.span()[0], 1); }).decided;
      if (!is_decided) continue;
      const auto scope = unit.use();
      for (float& x : mean.span()) x = 0.9f * x + 0.1f * r.loss;
    }
    me.outcome = job.outcome();
  };
}

void all_have_it(ElasticWorld& world, std::uint64_t hash) {
  for (std::size_t i = 0; const Member& m : world.wait()) {
    const std::size_t member = i++;
    if (world.was_killed(member) || world.was_refused(member)) continue;  // or the job was over before it came back
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == hash);
  }
}

}  // namespace

TEST_CASE("a running mean in a frozen tensor has the same bits whoever is lost or comes, also in an evaluation before it",
          "[job][elastic][evaluation]") {
  using Kind = Fate::Kind;
  for (const int stage : {0, 1, 3})
    for (const int evaluates : {0, 1, 2}) {
      const std::uint64_t hash = run_world({}, running_mean(stage, evaluates))[0].outcome.value().state_hash;
      for (const Kind kind : {Kind::dies, Kind::grows, Kind::splits})
        for (std::uint64_t at = stage < 2 ? 5 : 30; at < (stage < 2 ? 32 : 90); at += stride(stage < 2 ? 1 : 4)) {
          CAPTURE(stage, evaluates, static_cast<int>(kind), at);
          ElasticWorld world{3, {{kind, 1, at, true}}, running_mean(stage, evaluates)};
          all_have_it(world, hash);
        }
    }
}

TEST_CASE("a newcomer that had not come to its first step when the world changed again has the running mean, too",
          "[job][elastic][evaluation]") {
  using Kind = Fate::Kind;
  const std::uint64_t hash = run_world({}, running_mean(0, 1))[0].outcome.value().state_hash;
  for (std::uint64_t at = 10; at < 26; at += stride(2))
    for (std::uint64_t then = 2; then < 16; ++then)
      for (const Kind kind : {Kind::grows, Kind::splits}) {
        CAPTURE(at, then, static_cast<int>(kind));
        ElasticWorld world{2, {{Kind::grows, 0, at}, {kind, 0, then}, {Kind::grows, 0, 5}}, running_mean(0, 1)};
        all_have_it(world, hash);
      }
}

}  // namespace elrun::test
