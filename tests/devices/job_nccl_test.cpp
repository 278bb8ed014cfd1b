// Jobs whose arrays are exchanged by NCCL, from device to device: the host's bits, whoever goes away in whichever exchange; and who cannot make a group goes through the host.

#include "lib/device/device_memory.hpp"
#include "lib/job/declare/plan.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr int devices = 4;  // as tests/nccl.cmake says
const SteadyClock test_clock;
const DeviceGroups by_nccl{nccl_facts, join_device_collectives};

Plan short_plan(int stage, DType leaves = DType::f32) {
  Plan plan = toy_plan(stage, 4);
  plan.steps = 3, plan.leaves = leaves;
  return plan;
}
std::uint64_t undisturbed(ToyOptions options) {
  options.checkpoint = {}, options.throws = false;
  return run_world({.world = 1}, toy(options)).front().outcome->state_hash;
}
std::vector<std::unique_ptr<Memory>> memories(std::uint32_t world, int of = devices) {
  std::vector<std::unique_ptr<Memory>> out;
  for (std::uint32_t r = 0; r < world; ++r) out.push_back(make_device_memory({DeviceKind::cuda, static_cast<int>(r) % of}, test_clock));
  return out;
}
std::vector<Member> train(const std::vector<std::unique_ptr<Memory>>& on, const Program& program) {
  return run_world({.world = static_cast<std::uint32_t>(on.size()),
                    .arrays = [&](std::uint32_t rank) { return on[rank].get(); },
                    .device_groups = by_nccl},
                   program);
}
std::size_t said(const std::vector<Member>& members, std::string_view part) {
  std::size_t count = 0;
  for (const Member& member : members)
    count += static_cast<std::size_t>(
        std::ranges::count_if(member.lines, [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  return count;
}

}  // namespace

TEST_CASE("a world with a device for each rank exchanges by NCCL, and has the host's bits", "[nccl]") {
  for (const std::uint32_t world : {2u, 3u, 4u})
    for (const auto& [stage, leaves] : {std::pair{0, DType::f32}, {1, DType::bf16}, {3, DType::f32}}) {
      INFO(world << " ranks, zero(" << stage << ")");
      const ToyOptions options{.plan = short_plan(stage, leaves)};
      const auto members = train(memories(world), toy(options));
      for (const Member& member : members) {
        INFO((member.failure ? message(*member.failure) : std::string{}));
        REQUIRE(member.outcome);
        CHECK(member.outcome->state_hash == undisturbed(options));
      }
      CHECK(said(members, "exchanged by NCCL 2.28.9") == 1);
    }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("gradients and weights that travel in slots do so by NCCL, also while ranks compute", "[nccl]") {
  for (const Placement& placement :
       {zero(0, Exchange::per_slot), zero(2), zero(3), zero(3, Exchange::per_step), hybrid(zero(3)), mirrored(zero(1)), mirrored(zero(3))})
    for (const auto& [leaves, overlap] : {std::pair{DType::f32, true}, {DType::bf16, true}, {DType::bf16, false}}) {
      ToyOptions options{.plan = short_plan(0, leaves)};
      const std::uint64_t expected = undisturbed(options);
      options.plan.placement = placement, options.plan.overlap = overlap;
      INFO(*name_of(placement) << ", leaves of " << size_of(leaves) << " bytes, overlap " << overlap);
      for (const Member& member : train(memories(3), toy(options))) {
        INFO((member.failure ? message(*member.failure) : std::string{}));
        REQUIRE(member.outcome);
        CHECK(member.outcome->state_hash == expected);
      }
    }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("ranks that share a device go through the host, and the leader says once why", "[nccl]") {
  const ToyOptions options{.plan = short_plan(1)};
  const auto members = train(memories(3, 2), toy(options));
  for (const Member& member : members) {
    REQUIRE(member.outcome);
    CHECK(member.outcome->state_hash == undisturbed(options));
  }
  CHECK(said(members, "exchanged through the host's memory: ranks 0 and 2 use one device") == 1);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a store that is away while a group is made costs that generation, and no rank its NCCL", "[nccl]") {
  // Of the store, of the store, of NCCL in the making, of the system.
  const auto [code, remedy] = GENERATE(table<Code, Remedy>({{Code::unreachable, Remedy::retry},
                                                            {Code::deadline_passed, Remedy::retry},
                                                            {Code::deadline_passed, Remedy::abort_group},
                                                            {Code::io, Remedy::retry}}));
  const bool of_store = code != Code::io && remedy == Remedy::retry;
  const Failure why{code, remedy, "the store is away"};
  const auto failures = std::make_shared<std::atomic<int>>(0);
  DeviceGroups groups = by_nccl;
  groups.join = [=](Session& session, const DeviceGroupToJoin& group) -> Result<std::unique_ptr<DeviceCollectives>> {
    if (failures->fetch_add(1) < 2) {
      if (remedy == Remedy::abort_group) group.failed(why);  // as an owner of a communicator does before it aborts
      return why;
    }
    return join_device_collectives(session, group);
  };
  const auto born = std::make_shared<std::atomic<int>>(0);
  const auto memory = [born] {
    return make_device_memory({DeviceKind::cuda, (*born)++ % devices}, test_clock, {.staging = Bytes{64 << 10}});
  };
  const ToyOptions options{.plan = short_plan(1)};
  ElasticWorld world{2, {}, toy(options), {}, memory, groups};
  for (const Member& member : world.wait()) {
    INFO((member.failure ? message(*member.failure) : std::string{}));
    REQUIRE(member.outcome);
    CHECK(member.outcome->state_hash == undisturbed(options));
  }
  const auto says = [&](std::string_view part) {
    return std::ranges::any_of(world.lines(), [&](const std::string& line) { return line.find(part) != std::string::npos; });
  };
  CHECK(world.generations() == 2);
  CHECK(says("exchanged by NCCL") == of_store);
  CHECK(says("cannot use NCCL") == !of_store);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a group that was not made in time is tried again with other members, once", "[nccl]") {
  const int late = GENERATE(1, 2);
  CAPTURE(late);
  const auto tries = std::make_shared<std::atomic<int>>(0);
  DeviceGroups groups = by_nccl;
  groups.join = [=](Session& session, const DeviceGroupToJoin& group) -> Result<std::unique_ptr<DeviceCollectives>> {
    if (session.place().membership.rank == Rank{0} && tries->fetch_add(1) < late) {
      const Failure why{Code::deadline_passed, Remedy::abort_group, "NCCL did not make it in time"};
      group.failed(why);
      return why;
    }
    return join_device_collectives(session, group);
  };
  const auto born = std::make_shared<std::atomic<int>>(0);
  const auto memory = [born] {
    return make_device_memory({DeviceKind::cuda, (*born)++ % devices}, test_clock, {.staging = Bytes{64 << 10}});
  };
  constexpr std::uint64_t never = 1'000'000, in_first_step = 8;
  const auto dies = [](std::uint64_t at) { return Fate{Fate::Kind::dies, 1, at}; };
  const ToyOptions options{.plan = short_plan(0)};  // who stays has all of the state, and goes on
  // Rank 0 is late in generation 1. Generation 2 has the same members, and 3 a new one; 5 has another new one.
  ElasticWorld world{2, {dies(never), dies(in_first_step), dies(never), dies(in_first_step)}, toy(options), {}, memory, groups};
  const auto& members = world.wait();
  for (std::size_t i = 0; i < members.size(); ++i) {
    INFO("member " << i << (members[i].failure ? ": " + message(*members[i].failure) : ""));
    if (world.was_killed(i)) continue;
    REQUIRE(members[i].outcome);
    CHECK(members[i].outcome->state_hash == undisturbed(options));
  }
  const auto says = [&](std::string_view part) {
    return std::ranges::any_of(world.lines(), [&](const std::string& line) { return line.find(part) != std::string::npos; });
  };
  CHECK(world.generations() == (late == 1 ? 3 : 5));
  CHECK(says("rank 0 cannot use NCCL: NCCL did not make it in time; another rank may have stalled"));
  CHECK(says("exchanged by NCCL") == (late == 1));
  CHECK(tries->load() == 2);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("ranks that make different calls are told where NCCL would hang", "[nccl]") {
  const auto on = memories(2);
  const auto members =
      train(on, [&](Job& job, Member& me) { toy({.plan = short_plan(0), .evaluates_in_step = JobAccess::rank(job) == 1})(job, me); });
  for (const Member& member : members) {
    REQUIRE(member.failure);
    INFO(message(*member.failure));
    CHECK(member.failure->what.find("step.apply()") != std::string::npos);
  }
  (void)fakegpu::take_reports();
}

TEST_CASE("members that go away and come leave the bits as they are, by NCCL or through the host", "[nccl]") {
  for_all_seeds(5, [](Rng& rng) {
    ToyOptions options{.plan = short_plan(static_cast<int>(rng.below(4))), .evaluates = rng.chance(0.3), .throws = rng.chance(0.3)};
    const TemporaryDirectory root;
    if (rng.chance(0.5)) options.checkpoint = {.directory = root.path(), .every = 1 + rng.below(3)};
    std::vector<Fate> fates;
    std::string told;
    for (std::uint64_t i = 0, count = 1 + rng.below(3); i < count; ++i) {
      const auto kind = static_cast<Fate::Kind>(rng.below(6));
      fates.push_back({kind, static_cast<std::uint32_t>(rng.below(8)), rng.below(60), rng.chance(0.7)});
      if (rng.chance(0.5)) fates.back().before_told = [](Call) { std::this_thread::sleep_for(2ms); };  // the other one is in NCCL meanwhile
      told += fmt::format("kind {} of {} at {}; ", static_cast<int>(kind), fates.back().whom, fates.back().at);
    }
    const auto members = 2 + static_cast<std::uint32_t>(rng.below(2));
    INFO(members << " members, checkpoint every " << options.checkpoint.every << ": " << told);
    // Who comes in the place of another may share a device with a third: that generation goes through the host.
    const auto born = std::make_shared<std::atomic<int>>(0);
    ElasticWorld world{members,
                       fates,
                       toy(options),
                       {},
                       [born] {
                         return make_device_memory({DeviceKind::cuda, (*born)++ % devices}, test_clock, {.staging = Bytes{64 << 10}});
                       },
                       by_nccl};
    const auto& results = world.wait();
    for (std::size_t i = 0; i < results.size(); ++i) {
      INFO("member " << i << (results[i].failure ? ": " + message(*results[i].failure) : ""));
      if (world.was_killed(i) || world.was_refused(i)) continue;
      REQUIRE(!results[i].failure);
      REQUIRE(results[i].outcome);
      CHECK(results[i].outcome->state_hash == undisturbed(options));
    }
    for (const std::string& report : fakegpu::take_reports()) FAIL_CHECK(report);
  });
}
