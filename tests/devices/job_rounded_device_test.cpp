// Weights in bf16 beside masters of float, on fake devices: the bits of a program on the host that rounds float weights itself.

#include "lib/device/device_memory.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/unit/elastic_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr int devices = 2;  // as tests/device.cmake says; what they lack, ranks share
const SteadyClock test_clock;

std::uint64_t right_state(Plan plan) {
  plan.placement = zero(0);
  return run_world({.world = 1}, toy({.plan = plan, .weights = ToyWeights::rounded_by_the_program})).front().outcome->state_hash;
}

}  // namespace

TEST_CASE("weights in bf16 on devices have the host's bits in every world and placement", "[devices]") {
  Plan plan = toy_plan(0, 6);
  plan.steps = 3;
  const std::uint64_t right = right_state(plan);
  for (const std::uint32_t world : {1u, 2u, 3u})
    for (const Placement& placement : {zero(0), zero(1), zero(2), zero(3), mirrored(zero(3))})
      for (const bool overlap : {false, true}) {
        plan.placement = placement, plan.overlap = overlap;
        std::vector<std::unique_ptr<Memory>> memories;
        for (std::uint32_t r = 0; r < world; ++r)
          memories.push_back(make_device_memory({DeviceKind::cuda, static_cast<int>(r) % devices}, test_clock));
        const auto members = run_world({.world = world, .arrays = [&](std::uint32_t rank) { return memories[rank].get(); }},
                                       toy({.plan = plan, .weights = ToyWeights::bf16}));
        for (const Member& m : members) {
          INFO("world " << world << ", overlap " << overlap << (m.failure ? message(*m.failure) : ""));
          REQUIRE(m.outcome.has_value());
          CHECK(m.outcome->state_hash == right);
        }
        CHECK(fakegpu::take_reports().empty());
      }
}

TEST_CASE("weights in bf16 on devices have the host's bits after members were lost", "[devices]") {
  for (const int stage : {0, 3}) {
    Plan plan = toy_plan(stage, 6);
    plan.steps = 4;
    const std::uint64_t right = right_state(plan);
    ElasticWorld world{
        2, {{Fate::Kind::dies, 1, 25, true}, {Fate::Kind::grows, 0, 20, true}}, toy({.plan = plan, .weights = ToyWeights::bf16}), {}, [] {
          return make_device_memory({DeviceKind::cuda, 0}, test_clock);
        }};
    const auto& results = world.wait();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (world.was_killed(i) || world.was_refused(i)) continue;
      INFO("zero(" << stage << ") " << (results[i].failure ? message(*results[i].failure) : ""));
      REQUIRE(results[i].outcome.has_value());
      CHECK(results[i].outcome->state_hash == right);
    }
    CHECK(fakegpu::take_reports().empty());
  }
}
