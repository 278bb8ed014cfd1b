// A whole world of jobs whose arrays lie on fake devices: the same bits as on the host. They exchange through the host.

#include <elrun/verify.hpp>

#include "lib/device/device_memory.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/state/shard_map.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/unit/job_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr std::uint32_t devices = 2;  // as tests/device.cmake says; what they lack, ranks share
const Device device{DeviceKind::cuda, 0};
const SteadyClock test_clock;

/// The toy of job_world.hpp as a program writes it that computes on the host, wherever the arrays are: it reads weights and writes gradients.
struct Toy {
  AnyOptimizer optimizer;
  Plan plan;
  bool nests = false;                      ///< Each unit is used while the next one is.
  std::vector<RankBytes>* held = nullptr;  ///< By rank, at the end.

  static void add_gradients(Slot& slot, const ToyTensor& t, const Tensor<float>& tensor, std::uint32_t use) {
    std::vector<float> gradient(tensor.size());
    tensor.read_grad(gradient);
    add_toy_gradient(gradient, values_of(tensor), slot.samples(), slot.rng(), use + static_cast<std::uint32_t>(t.size));
    tensor.set_grad(gradient);
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
    me.steps_begun = 1;  // so to say: from here on it uses units
    if (!job.restore())
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        std::vector<float> values(tensors[i].size());
        for (std::size_t k = 0; k < values.size(); ++k) values[k] = job.rng(toy_tensors()[i].name).normal(k) * 0.02f;
        const auto scope = units[unit_of[i]].use();
        tensors[i].set(values);
      }
    const auto evaluate = [&] {
      const Evaluation all = job.evaluate(10, [&](Slot& slot) {
        double sum = 0;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          const auto scope = units[unit_of[i]].use();
          for (const float weight : values_of(tensors[i])) sum += std::fabs(static_cast<double>(weight));
        }
        slot.report(static_cast<float>(sum) * toy_loss(slot.samples(), slot.rng()), 1);
      });
      me.host_state = me.host_state * 31 + std::bit_cast<std::uint32_t>(all.loss);
    };
    evaluate();
    while (auto step = job.next_step()) {
      for (auto& slot : step->slots()) {
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          if (toy_tensors()[i].options.frozen) continue;
          if (i > 0 && unit_of[i] == unit_of[i - 1]) continue;
          for (std::uint32_t use = 0; use < toy_tensors()[i].options.uses; ++use) {
            const auto next = nests ? std::optional{units[(unit_of[i] + 1) % units.size()].use()} : std::nullopt;
            auto scope = units[unit_of[i]].use_grad();
            for (std::size_t k = i; k < tensors.size() && unit_of[k] == unit_of[i]; ++k)
              if (!toy_tensors()[k].options.frozen) add_gradients(slot, toy_tensors()[k], tensors[k], use);
          }
        }
        slot.report(toy_loss(slot.samples(), slot.rng()), 1);
      }
      me.steps.push_back(std::visit([&](const auto& o) { return step->apply(o, toy_options(step->number())); }, optimizer));
      if (step->number() == 1) {
        const Verification verified = verify(job);
        must(verified.decided && !verified.difference, "the copies of the state are the same");
      }
    }
    evaluate();
    if (held != nullptr) (*held)[JobAccess::rank(job)] = JobAccess::held(job);
    me.outcome = job.outcome();
  }
};

/// By rank, memory on a device of its own as far as there are some.
std::vector<std::unique_ptr<Memory>> memories(std::uint32_t world) {
  std::vector<std::unique_ptr<Memory>> out;
  for (std::uint32_t r = 0; r < world; ++r)
    out.push_back(make_device_memory({DeviceKind::cuda, static_cast<int>(r % devices)}, test_clock));
  return out;
}

struct Training {
  Placement placement = zero(0, Exchange::per_step);
  DType leaves = DType::f32;
  bool overlap = true;
  std::vector<std::uint32_t> nodes{};  // by rank; else all are on one
  AnyOptimizer optimizer = toy_adamw;
  std::uint64_t slots = 6;
  bool nests = false;
};
Plan plan_of(const Training& training) {
  Plan plan = toy_plan(0, training.slots);
  plan.placement = training.placement, plan.leaves = training.leaves, plan.overlap = training.overlap;
  plan.steps = 3;
  plan.optimizer = kind_of(training.optimizer);
  return plan;
}
std::vector<Member> train(const std::vector<std::unique_ptr<Memory>>& on, const Training& training,
                          std::vector<RankBytes>* held = nullptr) {
  return run_world({.world = static_cast<std::uint32_t>(on.size()),
                    .nodes = training.nodes,
                    .arrays = [&](std::uint32_t rank) { return on[rank].get(); }},
                   Toy{training.optimizer, plan_of(training), training.nests, held});
}
/// Alone, with zero(0): no bit depends on anything else.
Member train_on_host(const Training& training) {
  const Training plain{.leaves = training.leaves, .optimizer = training.optimizer, .slots = training.slots};
  return std::move(run_world({.arrays = [](std::uint32_t) { return &host_memory(); }}, Toy{plain.optimizer, plan_of(plain)}).front());
}

void check_same(const Member& on_device, const Member& host) {
  INFO((on_device.failure ? message(*on_device.failure) : std::string{}));
  REQUIRE(host.outcome);
  REQUIRE(on_device.outcome);
  CHECK(on_device.outcome->state_hash == host.outcome->state_hash);
  CHECK(on_device.host_state == host.host_state);
  REQUIRE(on_device.steps.size() == host.steps.size());
  for (std::size_t i = 0; i < host.steps.size(); ++i) {
    CHECK(std::bit_cast<std::uint32_t>(on_device.steps[i].norm) == std::bit_cast<std::uint32_t>(host.steps[i].norm));
    CHECK(std::bit_cast<std::uint32_t>(on_device.steps[i].loss) == std::bit_cast<std::uint32_t>(host.steps[i].loss));
  }
}

Layout toy_layout() {
  std::vector<UnitSpec> units;
  for (const ToyTensor& t : toy_tensors()) {
    if (units.empty() || units.back().name != t.unit) units.push_back({t.unit, {}});
    units.back().tensors.push_back({t.name, DType::f32, {t.size}, t.options});
  }
  return lay_out(units);
}

/// What ranks hold is what was worked out for them.
void check_held(const Training& training, const std::vector<RankBytes>& held) {
  const Plan plan = plan_of(training);
  const auto world = static_cast<std::uint32_t>(held.size());
  const ShardMap shards = shard_map(plan.placement.optimizer, training.nodes.empty() ? std::vector<std::uint32_t>(world) : training.nodes);
  const auto told = bytes_by_rank(toy_layout(), plan.placement, shards, plan.optimizer, static_cast<std::uint32_t>(plan.slots()),
                                  plan.reduce, plan.leaves, plan.overlap, DeviceKind::cuda);
  for (std::uint32_t r = 0; r < world; ++r) {
    CAPTURE(r);
    CHECK(held[r].parameters == told[r].parameters);
    CHECK(held[r].gradients == told[r].gradients);
    CHECK(held[r].optimizer == told[r].optimizer);
    CHECK(held[r].exchange == told[r].exchange);
    CHECK(held[r].in_use == told[r].in_use);
  }
}

/// Every way to hold and exchange the state that this many ranks have.
void check_all_placements(std::uint32_t world) {
  std::vector<Training> all;
  for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
    for (const DType leaves : {DType::f32, DType::bf16})
      for (const bool overlap : {false, true}) {
        if (world == 1 && overlap) continue;  // nobody is there to do it with
        for (const int stage : {0, 1, 2, 3}) all.push_back({.placement = zero(stage, exchange), .leaves = leaves, .overlap = overlap});
      }
  for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot}) {
    all.push_back({.placement = zero(3, exchange), .nests = true});
    for (const int stage : {2, 3})
      if (world == 3) all.push_back({.placement = hybrid(zero(stage, exchange)), .nodes = {0, 0, 1}});
    for (const int stage : {1, 2, 3}) all.push_back({.placement = mirrored(zero(stage, exchange))});
  }
  for (const Training& training : all) {
    INFO(world << " rank(s), " << *name_of(training.placement) << ", exchanged "
               << (training.placement.exchange == Exchange::per_slot ? "per slot" : "per step") << ", leaves of "
               << size_of(training.leaves) << " bytes, overlap " << training.overlap);
    const Member host = train_on_host(training);
    std::vector<RankBytes> held(world);
    for (const Member& member : train(memories(world), training, &held)) check_same(member, host);
    if (!training.nests) check_held(training, held);
  }
  CHECK(fakegpu::take_reports().empty());
}

}  // namespace

TEST_CASE("a job whose arrays are on a device ends with the state hash of one on the host", "[devices]") {
  for (const AnyOptimizer& optimizer :
       {AnyOptimizer{toy_adamw}, AnyOptimizer{Sgd{.momentum = 0.9f, .weight_decay = 0.1f}}, AnyOptimizer{Lion{}}})
    for (const std::uint64_t slots : {1u, 6u, 8u}) {
      const Training training{.optimizer = optimizer, .slots = slots};
      check_same(train(memories(1), training).front(), train_on_host(training));
    }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("so does one alone with every placement, exchange and type of leaves", "[devices]") { check_all_placements(1); }
TEST_CASE("so do two, also while they compute", "[devices]") { check_all_placements(2); }
TEST_CASE("so do three, of which two share a device", "[devices]") { check_all_placements(3); }

TEST_CASE("a job on a device gives all of it back", "[devices]") {
  const fakegpu::Holdings before = fakegpu::holdings();
  for (const Member& member : train(memories(2), {})) REQUIRE(member.outcome);
  CHECK(fakegpu::holdings() == before);
}

TEST_CASE("a device without memory for the job is told before the program uses anything", "[devices]") {
  int allocations = 0;
  for (bool enough = false; !enough; ++allocations) {
    REQUIRE(allocations < 100);
    const auto on = memories(2);
    fakegpu::set_faults(fmt::format("malloc:{}", allocations + 1));
    const std::vector<Member> members = train(on, {.placement = zero(3, Exchange::per_slot), .leaves = DType::bf16});
    fakegpu::set_faults("");
    enough = std::ranges::all_of(members, [](const Member& m) { return m.outcome.has_value(); });
    INFO("allocation " << allocations + 1);
    const auto told_in_time = [](const Member& m) { return m.failure && m.failure->code == Code::exhausted && m.steps_begun == 0; };
    if (!enough) CHECK(std::ranges::any_of(members, told_in_time));
  }
  CHECK(allocations > 10);
}
