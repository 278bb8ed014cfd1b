// Declarations and the report of their memory without a job: what may be declared when, and where views point.

#include "lib/job/declare/declarations.hpp"

#include <numeric>

#include "lib/job/declare/memory_report.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

Plan small_plan() {
  Plan p;
  p.global_batch = 8, p.micro_batch = 2, p.samples = 50, p.steps = 7;
  return p;
}

/// One unit with a frozen tensor between two that train.
UnitState& declare_unit(Declarations& declared) {
  UnitState& unit = declared.add_unit("u", nullptr);
  for (const auto& [name, frozen] : {std::pair{"a", false}, {"fixed", true}, {"b", false}})
    declared.add_tensor(unit, name, DType::f32, {100}, {.frozen = frozen});
  return unit;
}

}  // namespace

TEST_CASE("the plan comes first, and nothing is declared twice or after seal()", "[declarations]") {
  Declarations declared;
  CHECK_THROWS_WITH(declared.add_unit("u", nullptr), Catch::Contains("unit comes after configure()"));
  CHECK_THROWS_WITH(declared.lay_out(), Catch::Contains("seal comes after configure()"));
  declared.configure(small_plan(), {});
  CHECK_THROWS_WITH(declared.configure(small_plan(), {}), Catch::Contains("configure is called twice"));
  UnitState& unit = declare_unit(declared);
  CHECK(declared.lay_out().units.size() == 1);
  CHECK_FALSE(declared.is_sealed());
  declared.seal();
  CHECK_THROWS_WITH(declared.lay_out(), Catch::Contains("seal is called twice"));
  CHECK_THROWS_WITH(declared.add_unit("v", nullptr), Catch::Contains("a unit is declared after seal()"));
  CHECK_THROWS_WITH(declared.add_tensor(unit, "c", DType::f32, {1}, {}), Catch::Contains("a tensor is declared after seal()"));
}

TEST_CASE("a plan with problems is not taken, and all units with problems are told together", "[declarations]") {
  Declarations declared;
  Plan wrong = small_plan();
  wrong.micro_batch = 3;
  CHECK_THROWS_AS(declared.configure(wrong, {}), Error);
  CHECK_FALSE(declared.is_configured());
  declared.configure(small_plan(), {});
  for (const char* name : {"same", "same", ""}) declared.add_unit(name, nullptr);
  CHECK_THROWS_WITH(declared.lay_out(), Catch::Contains("same"));
}

TEST_CASE("a view keeps its place, and points at weights and gradients where they are", "[declarations]") {
  Declarations declared;
  declared.configure(small_plan(), {});
  UnitState& unit = declare_unit(declared);
  const TensorPlace* const first = &unit.tensors[0];
  for (int i = 0; i < 100; ++i) declared.add_unit(std::to_string(i), nullptr);
  CHECK(&unit.tensors[0] == first);
  CHECK(first->name == "u/a");
  CHECK(first->data == nullptr);
  UnitLayout layout;
  layout.trainable = 160, layout.offsets = {0, 192, 128};
  std::vector<float> trained(2000), frozen(2000), gradients(2000);
  declared.point_at_weights(0, layout, trained.data(), frozen.data());
  CHECK(unit.tensors[2].data == trained.data() + 128);
  declared.point_at_weights(0, layout, nullptr, frozen.data());
  CHECK(unit.tensors[2].data == nullptr);
  CHECK(unit.tensors[1].data == frozen.data() + 32);  // frozen: there on every rank, always
  declared.point_at_gradients(0, layout, gradients.data() + 500);
  CHECK(unit.tensors[2].grad == gradients.data() + 628);
  CHECK(unit.tensors[1].grad == nullptr);
  declared.point_at_gradients(0, layout, nullptr);
  CHECK(unit.tensors[2].grad == nullptr);
}

TEST_CASE("what does not fit into the machine is told with the largest tensor, and what fits is not", "[declarations]") {
  const Plan plan = small_plan();
  const std::vector<UnitSpec> units{{"u", {{"small", DType::f32, {10}, {}}, {"large", DType::f32, {4096}, {}}}}};
  const Layout layout = lay_out(units);
  const ShardMap shards = shard_map(Sharding::replicated, std::vector<std::uint32_t>{0});
  const std::uint64_t needs = bytes_by_rank(layout, plan.placement, shards, plan.optimizer, 4)[0].all();
  CHECK_FALSE(exceeds_machine(plan, units, layout, shards, 0, needs).has_value());
  const auto why = exceeds_machine(plan, units, layout, shards, 0, needs - 1);
  REQUIRE(why.has_value());
  CHECK_THAT(*why, Catch::Contains("rank 0 would hold") && Catch::Contains("'u/large' of 4096 elements"));
}

TEST_CASE("the line of memory says whether gradients are exchanged per step or per slot", "[declarations]") {
  const Plan plan = small_plan();
  const std::vector<UnitSpec> units{{"u", {{"w", DType::f32, {4096}, {}}}}};
  const Layout layout = lay_out(units);
  CHECK_THAT(memory_line(plan, units, layout, {.buffers = 3}, 2),
             Catch::Contains("4096 parameters in 1 unit(s)") && Catch::Contains("(3 buffers: folded here, exchanged once per step)"));
  CHECK_THAT(memory_line(plan, units, layout, {.per_slot = true, .buffers = 3}, 2),
             Catch::Contains("(3 partial sum(s), folded by the owners in every slot) and the units in use"));
}

}  // namespace elrun::test
