// A job that goes on from a checkpoint with other tensors frozen, or without weight decay, says so.

#include "lib/job/declare/tensor_options.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

/// All steps of a job that is declared, in slots without gradients.
void train(Job& job, Member& me) {
  job.seal();
  (void)job.restore();
  while (auto step = job.next_step()) {
    for (Slot& slot : step->slots()) slot.report(1, 1);
    (void)step->apply(toy_adamw, {.lr = 0.1f});
  }
  me.outcome = job.outcome();
}

}  // namespace

TEST_CASE("other tensors that are frozen or decay than in a checkpoint are named when the job goes on from it", "[job]") {
  const TemporaryDirectory root;
  struct Declared {
    TensorOptions body{}, head{};
  };
  std::uint64_t steps = 0;
  const auto run = [&](const Declared& declared) {
    steps += 2;
    return run_world({.world = 2, .generation = steps}, [&](Job& job, Member& me) {
      Plan plan = toy_plan(1);
      plan.steps = steps;
      job.configure(plan, {.directory = root.path()});
      Unit body = job.unit("body"), head = job.unit("head");
      (void)body.tensor<float>("weight", {300}, declared.body);
      (void)head.tensor<float>("scale", {7}, declared.head);
      train(job, me);
    });
  };
  const auto told = [](const std::vector<Member>& members) {
    std::string out;
    for (const Member& m : members) {
      INFO((m.failure ? message(*m.failure) : ""));
      REQUIRE(m.outcome.has_value());
      for (const std::string& line : m.lines)
        if (contains(line, "tensors are declared otherwise than in the checkpoint")) out += line;
    }
    return out;
  };
  CHECK(told(run({})).empty());
  CHECK(told(run({})).empty());
  CHECK(contains(told(run({.body = {.frozen = true}})),
                 "trained in the checkpoint, and frozen now; their moments are given up: body/weight"));
  CHECK(told(run({.body = {.decay = false, .frozen = true}})).empty());
  const std::string both = told(run({.head = {.decay = false}}));
  CHECK(contains(both, "frozen in the checkpoint, and trained now, with moments that begin at zero: body/weight"));
  CHECK(contains(both, "with weight decay in the checkpoint, and without it now: head/scale"));
  CHECK(contains(told(run({})), "without weight decay in the checkpoint, and with it now: head/scale"));
}

TEST_CASE("a checkpoint in which a tensor was frozen that shares its unit is refused, and the message asks for that", "[job]") {
  const TemporaryDirectory root;
  const auto run = [&](std::uint64_t steps, bool frozen) {
    return run_world({.generation = steps}, [&](Job& job, Member& me) {
      Plan plan = toy_plan(1);
      plan.steps = steps;
      job.configure(plan, {.directory = root.path()});
      Unit unit = job.unit("net");
      (void)unit.tensor<float>("b", {300}, {.frozen = frozen});
      (void)unit.tensor<float>("w", {2});
      train(job, me);
    })[0];
  };
  REQUIRE(run(2, false).outcome.has_value());
  const Member refused = run(4, true);
  REQUIRE(refused.failure.has_value());
  INFO(message(*refused.failure));
  CHECK(exit_code(*refused.failure) == 78);
  CHECK(contains(refused.failure->what, "is it declared frozen in one of both"));
}

TEST_CASE("a checkpoint of an earlier version does not say which tensors were frozen, and nothing is told", "[job]") {
  const std::vector<UnitSpec> units{{"net", {{"b", DType::f32, {300}, {.frozen = true}}, {"w", DType::f32, {2}, {}}}}};
  const Layout layout = lay_out(units);
  CHECK_FALSE(tensor_options_doubt({{"elrun.step", {}}}, units, layout).has_value());
  std::vector<Aux> aux;
  append_tensor_options(aux, units, layout);
  CHECK_FALSE(tensor_options_doubt(aux, units, layout).has_value());
  const std::vector<UnitSpec> declared_in_another_order{{"net", {{"w", DType::f32, {2}, {}}, {"b", DType::f32, {300}, {.frozen = true}}}}};
  CHECK_FALSE(tensor_options_doubt(aux, declared_in_another_order, lay_out(declared_in_another_order)).has_value());
}

}  // namespace elrun::test
