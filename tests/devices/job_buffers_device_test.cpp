// Units of a sharded model lie in buffers on a device, one after the other, and the program works in streams of its own: a buffer is taken again while kernels that read
// it may still wait. The checker of the fake devices reports each access that nothing orders.

#include "kernels/fold.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/device_memory.hpp"
#include "lib/device/handles.hpp"
#include "lib/device/runtime.hpp"
#include "lib/device/wait.hpp"
#include "lib/job/declare/plan.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/unit/job_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

const SteadyClock test_clock;
constexpr std::size_t units_count = 5;
constexpr std::uint64_t elements = 2500;

/// Forward and backward through units, each in another stream than the one before: kernels read weights and add them to the gradient. On the host the same sums.
class Model {
 public:
  explicit Model(Job& job) {
    for (std::size_t u = 0; u < units_count; ++u) {
      units.push_back(job.unit(fmt::format("unit {}", u)));
      weights.push_back(units.back().tensor<float>("weights", {elements}));
    }
  }
  void allocate(const Job& job) {
    on_device = job.device().kind == DeviceKind::cuda;
    if (!on_device) return;
    for (int i = 0; i < 3; ++i) streams.emplace_back(job.device());
    kept = DeviceBuffer{job.device(), units_count * elements * sizeof(float)};
  }
  void run(const Job& job, Slot& slot) {
    if (!on_device) return run_on_host(slot);
    const CurrentDevice current{job.device()};
    std::size_t turn = slot.index();
    const auto next = [&] { return streams[turn++ % streams.size()].view(); };
    const auto kept_of = [&](std::size_t u) { return std::span{reinterpret_cast<float*>(kept.data()) + u * elements, elements}; };
    for (std::size_t u = 0; u < units_count; ++u) {
      const Stream stream = next();
      const auto scope = units[u].use(stream);
      runtime::copy_async(std::as_bytes(std::span{weights[u].device_span().data, elements}), std::as_writable_bytes(kept_of(u)), stream);
      kept_in[u] = stream;
    }
    for (std::size_t u = units_count; u-- > 0;) {
      const Stream stream = next();
      const auto scope = units[u].use_grad(stream);
      OwnedEvent copied{job.device()};
      copied.record(kept_in[u]);
      wait_in(stream, copied.view());
      for (std::uint32_t i = 0; i <= slot.index() % 3; ++i) add_into_async(weights[u].grad_device_span(), weights[u].device_span(), stream);
      add_into_async(weights[u].grad_device_span(), {kept_of(u).data(), elements}, stream);
    }
  }
  void wait() const {
    for (const OwnedStream& stream : streams) {
      OwnedEvent end{stream.view().device()};
      end.record(stream.view());
      wait_for(end.view(), {.what = "the model", .deadline = Deadline::after(test_clock.now(), 60s)}, test_clock).value();
    }
  }
  std::vector<Unit> units;
  std::vector<Tensor<float>> weights;

 private:
  void run_on_host(Slot& slot) {
    for (std::size_t u = 0; u < units_count; ++u) {
      const auto scope = units[u].use_grad();
      for (std::uint32_t i = 0; i <= slot.index() % 3 + 1; ++i) add_into(weights[u].grad_span(), weights[u].span());
    }
  }
  bool on_device = false;
  std::vector<OwnedStream> streams;
  DeviceBuffer kept;  // what forward keeps for backward
  std::array<Stream, units_count> kept_in;
};

Program program(const Plan& plan) {
  return [plan](Job& job, Member& me) {
    job.configure(plan);
    Model model{job};
    job.seal();
    model.allocate(job);
    if (!job.restore())
      for (std::size_t u = 0; u < units_count; ++u) {
        std::vector<float> values(elements);
        for (std::size_t i = 0; i < elements; ++i) values[i] = job.rng(fmt::format("unit {}", u)).normal(i);
        const auto scope = model.units[u].use();
        model.weights[u].set(values);
      }
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        model.run(job, slot);
        slot.report(toy_loss(slot.samples(), slot.rng()), 1);
      }
      me.steps.push_back(step->apply(toy_adamw, toy_options(step->number())));
    }
    model.wait();
    me.outcome = job.outcome();
  };
}

}  // namespace

TEST_CASE("a unit's buffer is taken again after what reads it in the program's streams", "[devices]") {
  struct Row {
    std::uint32_t world;
    Placement placement;
    DType leaves;
  };
  for (const Row& row : {Row{1, zero(3), DType::f32}, Row{2, zero(2), DType::bf16}, Row{2, zero(3), DType::f32},
                         Row{2, zero(3, Exchange::per_step), DType::bf16}, Row{3, zero(3), DType::bf16}}) {
    Plan plan = toy_plan(0, 4);
    plan.steps = 2, plan.leaves = row.leaves;
    const Member host = std::move(run_world({}, program(plan)).front());
    REQUIRE(host.outcome);
    plan.placement = row.placement;
    INFO(row.world << " ranks, " << *name_of(row.placement) << ", leaves of " << size_of(row.leaves) << " bytes");
    std::vector<std::unique_ptr<Memory>> memories;
    for (std::uint32_t r = 0; r < row.world; ++r)
      memories.push_back(make_device_memory({DeviceKind::cuda, static_cast<int>(r % 2)}, test_clock));
    const auto members = run_world({.world = row.world, .arrays = [&](std::uint32_t rank) { return memories[rank].get(); }}, program(plan));
    for (const Member& member : members) {
      INFO((member.failure ? message(*member.failure) : std::string{}));
      REQUIRE(member.outcome);
      CHECK(member.outcome->state_hash == host.outcome->state_hash);
    }
    for (const std::string& report : fakegpu::take_reports()) FAIL_CHECK(report);
  }
}
