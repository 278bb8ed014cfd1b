// Jobs on fake devices that are disturbed: members go away and come, checkpoints go from devices to the host and back. The bits are those of the host, undisturbed.

#include <elrun/verify.hpp>

#include "lib/device/device_memory.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr int devices = 2;  // as tests/device.cmake says; members share them
const SteadyClock test_clock;

/// Of each member that is born, on one device after the other.
std::function<std::unique_ptr<Memory>()> on_devices() {
  const auto born = std::make_shared<std::atomic<int>>(0);
  return [born] { return make_device_memory({DeviceKind::cuda, (*born)++ % devices}, test_clock, {.staging = Bytes{64 << 10}}); };
}
Plan short_plan(int stage) {
  Plan plan = toy_plan(stage, 4);
  plan.steps = 4;
  return plan;
}
std::uint64_t undisturbed(const ToyOptions& options) {
  ToyOptions alone = options;
  alone.checkpoint = {}, alone.stop_after = ~std::uint64_t{0}, alone.throws = false;
  return run_world({.world = 1}, toy(alone)).front().outcome->state_hash;
}

void all_end_with(ElasticWorld& world, std::uint64_t state_hash) {
  const auto& results = world.wait();
  for (std::size_t i = 0; i < results.size(); ++i) {
    INFO("member " << i << (results[i].failure ? ": " + message(*results[i].failure) : ""));
    if (world.was_killed(i) || world.was_refused(i)) continue;
    REQUIRE(!results[i].failure);
    REQUIRE(results[i].outcome);
    CHECK(results[i].outcome->state_hash == state_hash);
  }
}

}  // namespace

TEST_CASE("members that go away and come leave the bits of a job on devices as they are", "[devices]") {
  for_all_seeds(6, [](Rng& rng) {
    ToyOptions options{.plan = short_plan(static_cast<int>(rng.below(4))), .evaluates = rng.chance(0.3), .throws = rng.chance(0.3)};
    const TemporaryDirectory root;
    if (rng.chance(0.5)) options.checkpoint = {.directory = root.path(), .every = 1 + rng.below(3)};
    if (options.plan.placement.optimizer == Sharding::sharded && rng.chance(0.5)) options.checkpoint.in_memory_every = 1 + rng.below(2);
    std::vector<Fate> fates;
    std::string told;
    for (std::uint64_t i = 0; i <= rng.below(3); ++i) {
      const auto kind = static_cast<Fate::Kind>(rng.below(6));
      fates.push_back({kind, static_cast<std::uint32_t>(rng.below(8)), rng.below(60), rng.chance(0.7)});
      told += fmt::format("kind {} of {} at {}; ", static_cast<int>(kind), fates.back().whom, fates.back().at);
    }
    const auto members = 1 + static_cast<std::uint32_t>(rng.below(3));
    INFO(members << " members, checkpoint every " << options.checkpoint.every << ": " << told);
    ElasticWorld world{members, fates, toy(options), {}, on_devices()};
    all_end_with(world, undisturbed(options));
    for (const std::string& report : fakegpu::take_reports()) FAIL_CHECK(report);
  });
}

TEST_CASE("a checkpoint of a job on devices goes on on the host, in another world, and back", "[devices]") {
  for (const int stage : {0, 1, 3})
    for (const bool from_device : {true, false}) {
      INFO("zero(" << stage << "), from the " << (from_device ? "device" : "host"));
      const TemporaryDirectory root;
      ToyOptions options{.plan = short_plan(stage), .checkpoint = {.directory = root.path(), .every = 2}, .stop_after = 3};
      const auto on = [&](bool device) { return device ? on_devices() : std::function<std::unique_ptr<Memory>()>{}; };
      ElasticWorld first{2, {}, toy(options), {}, on(from_device)};
      for (const Member& member : first.wait()) REQUIRE(!member.failure);
      options.stop_after = ~std::uint64_t{0};
      ElasticWorld second{3, {}, toy(options), {}, on(!from_device)};
      all_end_with(second, undisturbed(options));
      const auto told = [](const std::string& line) { return line.find("; the job now runs on ") != std::string::npos; };
      CHECK(std::ranges::count_if(second.lines(), told) == 1);
      CHECK(std::ranges::none_of(first.lines(), told));
    }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("an in-memory checkpoint of a job on devices brings back what went with a member", "[devices]") {
  for (const int stage : {1, 2, 3}) {
    INFO("zero(" << stage << ")");
    ToyOptions options{.plan = short_plan(stage), .checkpoint = {.in_memory_every = 1}};
    // In the middle of the job: the first in-memory checkpoint is made by exchange 10, 21 and 42, and the job ends after 23, 60 and 113. A few
    // exchanges more or fewer, as threads happen to run, change nothing.
    const std::uint64_t at = stage == 1 ? 16 : stage == 2 ? 40 : 75;
    ElasticWorld world{3, {{Fate::Kind::dies, 1, at, true}}, toy(options), {0, 1, 2}, on_devices()};
    all_end_with(world, undisturbed(options));
    CHECK(std::ranges::any_of(world.lines(),
                              [](const std::string& line) { return line.find("back to the in-memory checkpoint") != line.npos; }));
    for (const std::string& report : fakegpu::take_reports()) FAIL_CHECK(report);
  }
}

TEST_CASE("members on devices and on the host do not train together", "[devices]") {
  const auto memory = make_device_memory({DeviceKind::cuda, 0}, test_clock);
  const auto members = run_world({.world = 2, .arrays = [&](std::uint32_t rank) { return rank == 1 ? memory.get() : nullptr; }},
                                 toy({.plan = short_plan(0)}));
  REQUIRE(members[0].failure);
  CHECK(members[0].failure->code == Code::mismatch);
  CHECK(members[0].failure->what.find("kind of device") != std::string::npos);
}

TEST_CASE("a newcomer that sees no device ends alone, and the others go on", "[devices]") {
  const auto born = std::make_shared<std::atomic<int>>(0);
  const auto three_on_devices = [born, on_device = on_devices()]() -> std::unique_ptr<Memory> {
    return (*born)++ == 3 ? nullptr : on_device();  // as a successor after the node has lost its driver
  };
  const ToyOptions options{.plan = short_plan(0)};
  ElasticWorld world{3, {{Fate::Kind::dies, 1, 12, true}}, toy(options), {0, 1, 2}, three_on_devices};
  const auto& results = world.wait();
  REQUIRE(results.size() == 4);
  REQUIRE(results[3].failure);
  CHECK(results[3].failure->code == Code::mismatch);
  CHECK(results[3].failure->what.find("kind of device") != std::string::npos);
  for (const std::size_t i : {0u, 2u}) {
    INFO("member " << i << (results[i].failure ? ": " + message(*results[i].failure) : ""));
    REQUIRE(results[i].outcome);
    CHECK(results[i].outcome->state_hash == undisturbed(options));
  }
  for (const std::string& report : fakegpu::take_reports()) FAIL_CHECK(report);
}

TEST_CASE("copies of the state on devices are compared as on the host", "[devices]") {
  std::vector<std::unique_ptr<Memory>> memories;
  for (int r = 0; r < 2; ++r) memories.push_back(make_device_memory({DeviceKind::cuda, r % devices}, test_clock));
  std::vector<Verification> verified(2);
  const ToyOptions options{.plan = short_plan(0)};
  const auto members =
      run_world({.world = 2, .arrays = [&](std::uint32_t rank) { return memories[rank].get(); }}, [&](Job& job, Member& me) {
        toy(options)(job, me);
        verified[JobAccess::rank(job)] = verify(job);
      });
  for (const Verification& each : verified) CHECK((each.decided && !each.difference && each.state_hash == undisturbed(options)));
  CHECK(fakegpu::take_reports().empty());
}
