// With overlap, exchanges run beside the program's kernels: in a stream of their own, and in the right order with it. The checker of the fake devices reports what nothing orders.

#include "lib/device/device_memory.hpp"
#include "lib/job/declare/plan.hpp"
#include "tests/devices/overlap_program.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr int devices = 4;  // as tests/nccl.cmake says
const SteadyClock test_clock;

Plan busy_plan(Placement placement, DType leaves = DType::f32) {
  Plan plan = toy_plan(0, 4);
  plan.steps = 3, plan.placement = placement, plan.leaves = leaves;
  return plan;
}
std::uint64_t hosts_state(const Plan& plan) { return run_world({}, busy_program(plan)).front().outcome->state_hash; }

struct Row {
  std::uint32_t world;
  Placement placement;
  DType leaves;
  bool by_nccl;
};
void train(const Row& row, GoesAhead* ahead) {
  const Plan plan = busy_plan(row.placement, row.leaves);
  INFO(row.world << " ranks, " << *name_of(row.placement) << (row.by_nccl ? ", by NCCL" : ", through the host"));
  std::vector<std::unique_ptr<Memory>> memories;
  for (std::uint32_t r = 0; r < row.world; ++r)
    memories.push_back(make_device_memory({DeviceKind::cuda, static_cast<int>(r) % devices}, test_clock));
  const auto members = run_world({.world = row.world,
                                  .arrays = [&](std::uint32_t rank) { return memories[rank].get(); },
                                  .device_groups = row.by_nccl ? DeviceGroups{nccl_facts, join_device_collectives} : DeviceGroups{}},
                                 busy_program(plan, ahead));
  const std::uint64_t right = hosts_state(plan);
  for (const Member& member : members) {
    INFO((member.failure ? message(*member.failure) : std::string{}));
    REQUIRE(member.outcome);
    CHECK(member.outcome->state_hash == right);
  }
  for (const std::string& report : fakegpu::take_reports()) FAIL_CHECK(report);
}

}  // namespace

TEST_CASE("weights come and leaves go while kernels run that the device had got before", "[devices]") {
  for (const bool by_nccl : {false, true})
    for (const auto with : {GoesAhead::With::weights, GoesAhead::With::leaves}) {
      GoesAhead ahead{.with = with};
      train({2, with == GoesAhead::With::weights ? zero(3) : zero(2), DType::f32, by_nccl}, &ahead);
      INFO((with == GoesAhead::With::weights ? "weights" : "leaves"));
      CHECK(ahead.beside >= 12);
      CHECK(ahead.late == 0);
    }
}

TEST_CASE("a program that does not wait for its device has the host's bits, with what runs beside its kernels", "[devices]") {
  for (const Row& row : {Row{3, zero(3), DType::f32, false}, Row{4, zero(3), DType::bf16, true}, Row{2, zero(2), DType::bf16, false},
                         Row{3, zero(1, Exchange::per_slot), DType::f32, true}, Row{3, mirrored(zero(3)), DType::f32, true},
                         Row{1, zero(3), DType::f32, false}})
    train(row, nullptr);
}
