// Bugs in what a job does with devices (job_bugs.cmake): each is found with each seed, by a report of the checker, by a failure or by wrong bits. Without one there is none of these.

#include <atomic>
#include <string>

#include "lib/job/arrays/staged_exchange.hpp"
#include "tests/devices/overlap_program.hpp"
#include "tests/devices/streams_program.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace {

std::atomic<int> planted{0};

}  // namespace

/// The planted copies ask for it.
extern "C" __attribute__((visibility("default"))) int elrun_planted_bug() { return planted; }

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr int devices = 3;  // as job_bugs.cmake says
const SteadyClock test_clock;

std::unique_ptr<Memory> memory_of(std::uint32_t rank) {
  // Small, so that what is moved takes several turns. Without a bug all work ends, however slow the machine is.
  return make_device_memory(
      {DeviceKind::cuda, static_cast<int>(rank) % devices}, test_clock,
      {.staging = Bytes{8 << 10}, .packing = Bytes{2 << 10}, .last_wait = planted == 0 ? Duration{60s} : Duration{200ms}});
}

/// What a world tells that differs from the right one: its failures and its state.
std::string named_by(const std::vector<Member>& members, std::uint64_t right) {
  std::string told;
  for (const Member& member : members) {
    if (member.failure) told += message(*member.failure) + '\n';
    else if (!member.outcome || member.outcome->state_hash != right) told += "wrong bits\n";
  }
  return told;
}

/// Of one member on the host, without a bug.
std::uint64_t right_state(const Program& program) {
  const int bug = planted.exchange(0);
  const std::uint64_t state = run_world({}, program).front().outcome->state_hash;
  planted = bug;
  return state;
}

std::string train(std::uint32_t world, const Program& program, std::uint64_t right) {
  std::vector<std::unique_ptr<Memory>> memories;
  for (std::uint32_t r = 0; r < world; ++r) memories.push_back(memory_of(r));
  return named_by(run_world({.world = world, .arrays = [&](std::uint32_t rank) { return memories[rank].get(); }}, program), right);
}

ToyOptions options_of(Placement placement, DType leaves, ToyWeights weights) {
  ToyOptions options{.plan = toy_plan(0, 4), .weights = weights};
  options.plan.steps = 2, options.plan.placement = placement, options.plan.leaves = leaves, options.plan.overlap = false;
  return options;
}
template <int stage, Exchange exchange, DType leaves, ToyWeights weights = ToyWeights::f32>
std::string toy_world() {
  const ToyOptions options = options_of(zero(stage, exchange), leaves, weights);
  static const std::uint64_t right = right_state(toy(options));
  return train(3, toy(options), right);
}
constexpr auto whole = toy_world<0, Exchange::per_step, DType::f32>;
constexpr auto whole_bf16 = toy_world<0, Exchange::per_step, DType::bf16>;
constexpr auto sharded = toy_world<3, Exchange::per_slot, DType::f32>;
constexpr auto sharded_bf16 = toy_world<3, Exchange::per_slot, DType::bf16>;
constexpr auto rounded = toy_world<3, Exchange::per_slot, DType::f32, ToyWeights::bf16>;

/// The program's own streams, and losses that it leaves on the device.
std::string streams() {
  static const std::uint64_t right = right_state(streams_program({}));
  return train(2, streams_program({.own_streams = true}), right);
}
std::string late_losses() {
  static const std::uint64_t right = right_state(streams_program({}));
  return train(2, streams_program({.own_streams = true, .reports_late = true}), right);
}

/// In a scope of the program's own stream its kernels write weights, and the host reads and writes them.
std::string reads_and_writes() {
  static const std::uint64_t right = right_state(streams_program({}));
  std::atomic<bool> wrong = false;
  const auto in_scope = [&](Job& job, Unit& unit, const Tensor<float>& tensor) {
    if (job.device().kind == DeviceKind::host) return;
    const OwnedStream own{job.device()};
    std::vector<float> before(tensor.size()), back(tensor.size());
    tensor.read(before);
    {
      const auto scope = unit.use(own.view());
      must(cudaMemsetAsync(tensor.device_span().data, 0, tensor.size() * sizeof(float), native(own.view())) == cudaSuccess, "a fill");
      tensor.read(back);
      if (std::ranges::any_of(back, [](float x) { return x != 0; })) wrong = true;
      tensor.set(before);
      must(cudaMemcpyAsync(tensor.grad_device_span().data, tensor.device_span().data, tensor.size() * sizeof(float),
                           cudaMemcpyDeviceToDevice, native(own.view())) == cudaSuccess,
           "a copy");
    }
    must(cudaStreamSynchronize(native(own.view())) == cudaSuccess, "the end of a stream");
  };
  std::string told = train(2, streams_program({.own_streams = true, .in_scope = in_scope}), right);
  return wrong ? told + "wrong bits" : told;
}

/// Without a job: runs are written and read in several turns, and freed while copies from them are under way.
std::string moved_and_freed() {
  std::vector<float> values(6000), back(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto bytes = std::as_bytes(std::span{values});
  const auto memory = memory_of(0);
  const auto array = [&] { return std::span{static_cast<std::byte*>(memory->allocate(bytes.size())), bytes.size()}; };
  for (int round = 0; round < 5; ++round) {
    const auto first = array(), second = array(), third = array();
    memory->write(bytes, first);
    for (int i = 0; i < 10; ++i) memory->copy(first, second), memory->copy(second, third);
    memory->free(second.data());
    memory->free(first.data());
    memory->read(third, std::as_writable_bytes(std::span{back}));
    memory->free(third.data());
    if (back != values) return "wrong bits";
  }
  return "";
}

/// Without a job: exchanges follow each other, and the last is given up, while what was received is on its way to the device.
std::string given_up() {
  std::vector<std::byte> sent(40000), back(sent.size());
  const auto memory = memory_of(0);
  std::vector<std::byte*> arrays;
  {
    StagedExchange exchange{memory->device(), test_clock};
    const std::vector<SendList> sends{{}};
    const auto host = [&](std::span<const SendList>, std::span<const ReceiveList> in) -> Result<void> {
      auto from = sent.begin();
      for (const auto& part : in[0]) std::copy_n(from, part.size(), part.begin()), from += static_cast<std::ptrdiff_t>(part.size());
      return {};
    };
    for (int i = 0; i < 2; ++i) {
      std::ranges::fill(sent, static_cast<std::byte>(i));
      arrays.push_back(static_cast<std::byte*>(memory->allocate(sent.size())));
      const std::vector<ReceiveList> receives{{{arrays.back(), sent.size()}}};
      must(exchange.exchange(sends, receives, {.stream = memory->stream(), .host = host, .over = [] { return false; }, .limit = 60s}).ok(),
           "an exchange");
    }
  }
  std::string told;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    memory->read({arrays[i], back.size()}, back);
    memory->free(arrays[i]);
    if (std::ranges::count(back, static_cast<std::byte>(i)) != std::ssize(back)) told = "wrong bits";
  }
  return told;
}

/// Members live through generations that end in the middle of an exchange by NCCL. The program's copies read in a revoked slot what is there.
std::string broken() {
  const Program program = [](Job& job, Member& me) {
    Plan plan = toy_plan(0, 4);
    plan.steps = 24, plan.placement = zero(3, Exchange::per_slot), plan.overlap = false;
    job.configure(plan);
    Unit unit = job.unit("all");
    const Tensor<float> weights = unit.tensor<float>("weights", {3000});
    job.seal();
    if (!job.restore()) {
      const auto scope = unit.use();
      weights.set(std::vector<float>(weights.size(), 0.5f));
    }
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        const auto scope = unit.use_grad();
        if (on_host(job)) std::ranges::copy(weights.span(), weights.grad_span().begin());
        else
          must(cudaMemcpyAsync(weights.grad_device_span().data, weights.device_span().data, weights.size() * sizeof(float),
                               cudaMemcpyDeviceToDevice, native(job.stream())) == cudaSuccess,
               "a copy");
        slot.report(0.0f, 1);
      }
      (void)step->apply(toy_adamw, toy_options(step->number()));
    }
    me.outcome = job.outcome();
  };
  static const std::uint64_t right = right_state(program);
  std::vector<Fate> fates;
  for (std::uint64_t i = 0; i < 24; ++i) {
    fates.push_back({Fate::Kind::splits, static_cast<std::uint32_t>(i % 2), 10 + i});
    fates.back().before_told = [](Call) { std::this_thread::sleep_for(2ms); };  // the other one is in NCCL meanwhile
  }
  const auto born = std::make_shared<std::atomic<std::uint32_t>>(0);
  ElasticWorld world{2, fates, program, {}, [born] { return memory_of((*born)++); }, {nccl_facts, join_device_collectives}};
  const auto& results = world.wait();
  return named_by({results.begin(), results.end()}, right);
}

/// Exchanges beside the kernels of a program that does not wait for them. Of the three ranks one has no slot, and gives others its shard.
template <int stage>
std::string beside() {
  Plan plan = toy_plan(0, 2, Exchange::per_slot);
  plan.steps = 2, plan.placement = zero(stage, Exchange::per_slot);
  static const std::uint64_t right = right_state(busy_program(plan));
  return train(3, busy_program(plan), right);
}
constexpr auto beside_2 = beside<2>;
constexpr auto beside_3 = beside<3>;

struct Bug {
  int number;
  std::string_view what;
  std::string (*told)();
};

constexpr Bug bugs[] = {
    {1, "a hash that is taken before it is there", whole},
    {2, "a hash that is added to the one before", whole},
    {3, "a hash behind which no event is recorded", whole},
    {4, "pinned memory that is written while a copy from it is under way", moved_and_freed},
    {5, "a copy from pinned memory behind which no event is recorded", moved_and_freed},
    {6, "pinned memory that is read before the copy to it has ended", moved_and_freed},
    {7, "a copy to pinned memory behind which no event is recorded", moved_and_freed},
    {8, "memory that is given back to CUDA while it is used", moved_and_freed},
    {9, "memory that is given back as if its stream were idle", moved_and_freed},
    {10, "memory that is not filled with zeros", whole},
    {11, "a copy while another device is current", sharded},
    {12, "halves that are put where floats would lie", whole_bf16},
    {13, "an exchange that sends before the copies to its pinned memory have ended", sharded},
    {14, "an exchange behind whose copies no event is recorded", sharded},
    {15, "pinned memory that receives again before it was copied to the device", given_up},
    {16, "an exchange that sends what was there before", sharded},
    {17, "two runs of an exchange in the same pinned memory", sharded},
    {18, "pinned memory that is freed while a copy is under way", given_up},
    {19, "weights that an aborted call of NCCL has left behind", broken},
    {20, "a stream of the program that waits for an event of before", streams},
    {21, "streams of which neither waits for the other", streams},
    {22, "a loss for which the job's stream does not wait", late_losses},
    {23, "a scope for gradients that begins before they are zero", streams},
    {24, "a scope whose end does not wait for the program's kernels", streams},
    {25, "a read of the host that does not wait for the program's kernels", reads_and_writes},
    {26, "kernels of the program that do not wait for what the host wrote", reads_and_writes},
    {27, "a buffer that two units get", sharded},
    {28, "a unit's buffer without this rank's part", sharded},
    {29, "initial values that stay in a unit's buffer", sharded},
    {30, "a leaf whose own part stays in a buffer that is given back", sharded},
    {31, "leaves of all ranks in one place", sharded},
    {32, "a leaf that begins with the one before", sharded},
    {33, "a leaf that is folded before those of other ranks are there", sharded},
    {34, "a leaf that is sent before it is packed", sharded_bf16},
    {35, "leaves that are exchanged before they are packed", whole_bf16},
    {36, "a leaf that is added before it is rounded", whole_bf16},
    {37, "a gradient that begins with the one before", whole},
    {38, "an exchange that receives without a wait for the one before", given_up},
    {39, "weights that are given before they are rounded", rounded},
    {40, "a unit in bf16 without this rank's part", rounded},
    {41, "rounds that come after nothing of the job's work", beside_3},
    {42, "a job that does not wait for what rounds have done", beside_2},
    {43, "a job that waits for what rounds had done before", beside_2},
    {44, "weights that are given for an evaluation before they are updated", beside_3},
    {45, "weights that arrive in a buffer before kernels have read the unit before", beside_3},
    {46, "a leaf that is handed off before it is final", beside_2},
    {47, "weights that are given while they are updated", beside_3},
    {48, "sums that are used before the last leaf is in them", beside_2},
    {49, "weights that arrive in a buffer that was taken again, as if it were free since its first use", beside_3},
};

/// Whether anything tells of a bug: a report, a failure, wrong bits. The devices are fresh afterwards.
std::string report_of(const Bug& bug, int number, std::uint64_t seed) {
  fakegpu::set_seed(seed);
  planted = number;
  std::string told;
  try {
    told = bug.told();
  } catch (const std::exception& e) {
    told = e.what();
  }
  planted = 0;
  for (const std::string& report : fakegpu::take_reports()) told += report + '\n';
  for (int device = 0; device < devices; ++device) {
    (void)cudaSetDevice(device);  // which may say that it is lost, until it is reset
    if (cudaDeviceReset() != cudaSuccess) told += "a device cannot be used any more";
  }
  return told;
}

}  // namespace

TEST_CASE("a bug in what a job does with devices is found with every seed, and none is where there is none", "[devices]") {
  const std::uint64_t seeds = std::getenv("ELRUN_FULL") != nullptr ? 20 : 2;
  for (const Bug& bug : bugs)
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      INFO(bug.number << ", " << bug.what << ", seed " << seed);
      // Which rank's thread comes first is the machine's choice. To the fake devices all are one host: the wait of one may hide that another one's is missing.
      std::string told;
      for (int tries = 0; tries < 10 && told.empty(); ++tries) told = report_of(bug, bug.number, seed);
      CHECK(told != "");
    }
  for (const auto scenario : {whole, whole_bf16, sharded, sharded_bf16, rounded, streams, late_losses, reads_and_writes, moved_and_freed,
                              given_up, broken, beside_2, beside_3})
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) CHECK(report_of({0, "", scenario}, 0, seed) == "");
}
