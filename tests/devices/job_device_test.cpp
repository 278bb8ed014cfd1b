// A whole Job whose arrays lie on a fake device: the same bits as on the host. A world of one, gradients exchanged once per step.

#include "lib/device/device_memory.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/unit/job_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

const Device device{DeviceKind::cuda, 0};
const SteadyClock test_clock;

/// The toy of job_world.hpp as a program writes it that computes on the host, wherever the arrays are: it reads weights and writes gradients.
struct Toy {
  Memory& memory;
  AnyOptimizer optimizer;
  Plan plan;

  [[nodiscard]] std::vector<float> read(std::span<const float> run) const {
    std::vector<float> out(run.size());
    memory.read(std::as_bytes(run), std::as_writable_bytes(std::span{out}));
    return out;
  }
  void write(std::span<const float> values, std::span<float> run) const {
    memory.write(std::as_bytes(values), std::as_writable_bytes(run));
  }

  void add_gradients(Slot& slot, const ToyTensor& t, const Tensor<float>& tensor, std::uint32_t use) const {
    std::vector<float> gradient = read(tensor.grad_span());
    add_toy_gradient(gradient, read(tensor.span()), slot.samples(), slot.rng(), use + static_cast<std::uint32_t>(t.size));
    write(gradient, tensor.grad_span());
  }

  void operator()(Job& job, Member& me) const {
    job.configure(plan);
    std::vector<Unit> units;
    std::vector<std::size_t> unit_of;
    std::vector<Tensor<float>> tensors;
    const char* last = "";
    for (const ToyTensor& t : toy_tensors()) {
      if (std::string_view{last} != t.unit) units.push_back(job.unit(last = t.unit));
      unit_of.push_back(units.size() - 1);
      tensors.push_back(units.back().tensor<float>(t.name, {t.size}, t.options));
    }
    job.seal();
    if (!job.restore())
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        std::vector<float> values(tensors[i].size());
        for (std::size_t k = 0; k < values.size(); ++k) values[k] = job.rng(toy_tensors()[i].name).normal(k) * 0.02f;
        write(values, tensors[i].span());
      }
    while (auto step = job.next_step()) {
      for (auto& slot : step->slots()) {
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          if (toy_tensors()[i].options.frozen) continue;
          if (i > 0 && unit_of[i] == unit_of[i - 1]) continue;
          for (std::uint32_t use = 0; use < toy_tensors()[i].options.uses; ++use) {
            auto scope = units[unit_of[i]].use_grad();
            for (std::size_t k = i; k < tensors.size() && unit_of[k] == unit_of[i]; ++k)
              if (!toy_tensors()[k].options.frozen) add_gradients(slot, toy_tensors()[k], tensors[k], use);
          }
        }
        slot.report(toy_loss(slot.samples(), slot.rng()), 1);
      }
      me.steps.push_back(std::visit([&](const auto& o) { return step->apply(o, toy_options(step->number())); }, optimizer));
    }
    me.outcome = job.outcome();
  }
};

Member train(Memory& memory, const AnyOptimizer& optimizer, std::uint64_t slots) {
  Plan plan = toy_plan(0, slots);
  plan.steps = 3;
  plan.optimizer = kind_of(optimizer);
  auto members = run_world({.arrays = &memory}, Toy{memory, optimizer, plan});
  return std::move(members.front());
}

}  // namespace

TEST_CASE("a job whose arrays are on a device ends with the state hash of one on the host", "[devices]") {
  for (const AnyOptimizer& optimizer :
       {AnyOptimizer{toy_adamw}, AnyOptimizer{Sgd{.momentum = 0.9f, .weight_decay = 0.1f}}, AnyOptimizer{Lion{}}})
    for (const std::uint64_t slots : {1u, 6u, 8u}) {
      const Member host = train(host_memory(), optimizer, slots);
      REQUIRE(host.outcome);
      const auto memory = make_device_memory(device, test_clock);
      const Member on_device = train(*memory, optimizer, slots);
      INFO((on_device.failure ? message(*on_device.failure) : std::string{}));
      REQUIRE(on_device.outcome);
      CHECK(on_device.outcome->state_hash == host.outcome->state_hash);
      REQUIRE(on_device.steps.size() == host.steps.size());
      for (std::size_t i = 0; i < host.steps.size(); ++i) {
        CHECK(std::bit_cast<std::uint32_t>(on_device.steps[i].norm) == std::bit_cast<std::uint32_t>(host.steps[i].norm));
        CHECK(std::bit_cast<std::uint32_t>(on_device.steps[i].loss) == std::bit_cast<std::uint32_t>(host.steps[i].loss));
      }
    }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a job on a device gives all of it back", "[devices]") {
  const fakegpu::Holdings before = fakegpu::holdings();
  {
    const auto memory = make_device_memory(device, test_clock);
    REQUIRE(train(*memory, toy_adamw, 2).outcome);
  }
  CHECK(fakegpu::holdings() == before);
}

TEST_CASE("a device without memory for the job is told before the first step", "[devices]") {
  const auto memory = make_device_memory(device, test_clock);
  fakegpu::set_faults("malloc:2");
  const Member failed = train(*memory, toy_adamw, 2);
  fakegpu::set_faults("");
  REQUIRE(failed.failure);
  CHECK(failed.failure->code == Code::exhausted);
  CHECK(failed.steps.empty());
}

TEST_CASE("what a job on a device cannot do yet is refused with what can", "[devices]") {
  const auto memory = make_device_memory(device, test_clock);
  Plan plan = toy_plan(0, 2);
  plan.leaves = DType::bf16;
  auto members = run_world({.arrays = memory.get()}, Toy{*memory, toy_adamw, plan});
  REQUIRE(members.front().failure);
  CHECK(members.front().failure->what.find("leaves in bf16") != std::string::npos);
  plan = toy_plan(3, 2);
  members = run_world({.arrays = memory.get()}, Toy{*memory, toy_adamw, plan});
  REQUIRE(members.front().failure);
  CHECK(members.front().failure->what.find("zero(0) or zero(1)") != std::string::npos);
}
