// The world of a job on devices is rebuilt again and again: what a process holds of the system, of CUDA and of NCCL does not grow.

#include <array>
#include <barrier>
#include <cstdlib>

#include "lib/device/device_memory.hpp"
#include "lib/job/declare/plan.hpp"
#include "tests/devices/nccl_world.hpp"
#include "tests/unit/elastic_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr std::uint32_t members = 2;
constexpr std::size_t spare_events = 8;
const SteadyClock test_clock;
const DeviceGroups by_nccl{nccl_facts, join_device_collectives};

std::size_t rebuilds(std::size_t usual) { return std::getenv("ELRUN_FULL") != nullptr ? 1000 : usual; }

/// One unit of two granules and a rest. Its gradient is its weights, by a copy on the device: a generation costs little but its rebuilding.
/// The job ends in generation `last`.
void small(Job& job, std::uint64_t last, Placement placement) {
  Plan plan = toy_plan(0, 2);
  plan.steps = 100 * last, plan.placement = placement, plan.overlap = true;
  job.configure(plan);
  Unit unit = job.unit("all");
  const Tensor<float> weights = unit.tensor<float>("weights", {600});
  job.seal();
  if (!job.restore()) {
    const auto scope = unit.use();
    weights.set(std::vector<float>(weights.size(), 0.5f));
  }
  while (auto step = job.next_step()) {
    for (Slot& slot : step->slots()) {
      const auto scope = unit.use_grad();
      must(cudaMemcpyAsync(weights.grad_device_span().data, weights.device_span().data, weights.size() * sizeof(float),
                           cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(job.stream().handle())) == cudaSuccess,
           "a copy");
      slot.report(0.0f, 1);
    }
    if (JobAccess::host(job).session.place().membership.generation.number >= last) job.stop();
    (void)step->apply(toy_adamw, toy_options(step->number()));
  }
}

/// What was freed waits for its stream: here all of it is given back.
void give_back_what_waits(Job& job) {
  Memory& memory = *JobAccess::host(job).arrays;
  void* const last = memory.allocate(256);
  (void)memory.hash({static_cast<const std::byte*>(last), 256}, 0, 0);
  memory.free(last);
}

/// Generations that do not last: somebody ends them, or one exchange reaches one member alone, or takes too long. The first ends before there is a group of NCCL, most in a step.
std::vector<Fate> short_generations(std::size_t count) {
  constexpr std::array kinds{Fate::Kind::breaks, Fate::Kind::splits, Fate::Kind::times_out};
  std::vector<Fate> fates;
  for (std::size_t i = 0; i < count; ++i) fates.push_back({kinds[i % kinds.size()], static_cast<std::uint32_t>(i % members), 6 + i % 31});
  return fates;
}

/// Groups of NCCL that the process has made so far: one communicator for each member of a generation.
class MadeCommunicators {
 public:
  MadeCommunicators() { set(on_call, &count_); }
  ~MadeCommunicators() { set(nullptr, nullptr); }
  MadeCommunicators(const MadeCommunicators&) = delete;
  MadeCommunicators& operator=(const MadeCommunicators&) = delete;
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  static void set(FakeNcclHook hook, void* data) {
    if (const auto set_hook = in_fake_nccl<void (*)(FakeNcclHook, void*)>("fakenccl_set_hook")) set_hook(hook, data);
  }
  static void on_call(void* data, std::uint64_t, const char* name) {
    if (std::string_view{name}.starts_with("ncclCommInit")) ++*static_cast<std::atomic<std::size_t>*>(data);
  }
  std::atomic<std::size_t> count_ = 0;
};

/// What the process holds once all members have come to the end, after so many generations.
HeldByProcess held_after(std::size_t generations, Placement placement, const DeviceGroups& groups) {
  std::barrier all_at_end{members};
  HeldByProcess held;
  const auto born = std::make_shared<std::atomic<int>>(0);
  ElasticWorld world{members,
                     short_generations(generations),
                     [&](Job& job, Member& me) {
                       small(job, generations + 1, placement);
                       me.outcome = job.outcome();
                       give_back_what_waits(job);
                       all_at_end.arrive_and_wait();
                       if (JobAccess::rank(job) == 0) held = HeldByProcess::now();
                       all_at_end.arrive_and_wait();
                     },
                     {},
                     [born] {
                       return make_device_memory({DeviceKind::cuda, (*born)++ % 4}, test_clock, {.staging = Bytes{64 << 10}});
                     },
                     groups};
  for (const Member& member : world.wait()) {
    INFO((member.failure ? message(*member.failure) : std::string{}));
    REQUIRE(member.outcome);
  }
  CHECK(world.generations() > generations);
  return held;
}

void check_same(const HeldByProcess& before, const HeldByProcess& after) {
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.threads == before.threads);
  CHECK(after.communicators == before.communicators);
  CHECK(after.devices.allocations == before.devices.allocations);
  CHECK(after.devices.device_bytes == before.devices.device_bytes);
  CHECK(after.devices.pinned == before.devices.pinned);
  CHECK(after.devices.imported == before.devices.imported);
  CHECK(after.devices.streams == before.devices.streams);
  // A communicator keeps events of calls that are over for the next ones: how many depends on how many calls ran at one time.
  CHECK(after.devices.events <= before.devices.events + spare_events);
}

}  // namespace

TEST_CASE("members that live through many generations hold as much as after a few", "[nccl]") {
  for (const auto& [placement, groups, usual] : {std::tuple{zero(1), by_nccl, 40}, {zero(3), by_nccl, 40}, {zero(3), DeviceGroups{}, 40}}) {
    INFO(*name_of(placement) << (groups.join ? " by NCCL" : " through the host"));
    const HeldByProcess few = held_after(12, placement, groups);
    const MadeCommunicators made;
    check_same(few, held_after(rebuilds(static_cast<std::size_t>(usual)), placement, groups));
    const auto expected = groups.join ? members * rebuilds(static_cast<std::size_t>(usual)) / 2 : 0;
    CHECK(made.count() >= expected);
  }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("members that die and are replaced leave nothing on their devices", "[nccl]") {
  const auto deaths = [](std::size_t count) {
    std::vector<Fate> fates;
    for (std::size_t i = 0; i < count; ++i) fates.push_back({Fate::Kind::dies, static_cast<std::uint32_t>(i % members), 6 + i % 31});
    const auto born = std::make_shared<std::atomic<int>>(0);
    ElasticWorld world{members,
                       fates,
                       [&](Job& job, Member& me) {
                         small(job, count + 1, zero(0));
                         me.outcome = job.outcome();
                       },
                       {},
                       [born] {
                         return make_device_memory({DeviceKind::cuda, (*born)++ % 4}, test_clock, {.staging = Bytes{64 << 10}});
                       },
                       by_nccl};
    (void)world.wait();
    CHECK(world.generations() > count);
  };
  deaths(2);
  const HeldByProcess before = HeldByProcess::now();
  deaths(rebuilds(30));
  check_same(before, HeldByProcess::now());
  CHECK((before.communicators == 0 && before.devices.streams == 0));
  CHECK(fakegpu::take_reports().empty());
}
