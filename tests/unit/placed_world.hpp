#pragma once
/// \file Jobs of the toy on nodes, under any placement of which the state is in several copies: what undisturbed they come to, and any history.

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/job/declare/plan.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {

using Nodes = std::vector<std::uint32_t>;
/// Bytes per second at which state is expected to travel: at none it comes before slots, at one per second beside them where it can.
constexpr std::uint64_t before_slots = 0, beside_slots = 1;
/// hybrid or mirrored.
using Copies = Placement (*)(Placement);

inline Plan placed_plan(Copies copies, int stage, std::uint64_t slots = 8, Exchange exchange = Exchange::automatic) {
  Plan plan = toy_plan(stage, slots, exchange);
  plan.placement = copies(plan.placement);
  return plan;
}

inline std::uint64_t undisturbed(std::uint64_t slots = 8, DType leaves = DType::f32) {
  static std::map<std::pair<std::uint64_t, DType>, std::uint64_t> known;
  auto& hash = known[{slots, leaves}];
  Plan plan = toy_plan(0, slots);
  plan.leaves = leaves;
  if (hash == 0) hash = run_world({.world = 1}, toy({.plan = plan}))[0].outcome->state_hash;
  return hash;
}

inline void ended_alike(const Member& m, std::uint64_t slots = 8, DType leaves = DType::f32) {
  INFO((m.failure ? message(*m.failure) : ""));
  REQUIRE(m.outcome.has_value());
  CHECK(m.outcome->state_hash == undisturbed(slots, leaves));
  CHECK(m.host_state == 7);
}

inline bool said(const ElasticWorld& world, std::string_view what) {
  return std::ranges::any_of(world.lines(), [&](const std::string& line) { return line.find(what) != line.npos; });
}

inline std::string text_of(const Nodes& nodes) { return fmt::format("nodes {}", fmt::join(nodes, " ")); }

/// A random history, of workers and of nodes. `in_memory_every`: of sharded state.
inline void any_history(Rng& rng, Copies copies, std::uint64_t in_memory_every = 0) {
  const int stage = static_cast<int>(rng.below(4));
  const bool per_slot = rng.chance(stage >= 2 ? 0.8 : 0.2);
  const TemporaryDirectory root;
  CheckpointOptions checkpoint;
  if (rng.chance(0.5)) checkpoint = {.directory = root.path(), .every = 1 + rng.below(4)};
  const auto members = 1 + static_cast<std::uint32_t>(rng.below(5));
  Nodes nodes;
  for (std::uint32_t i = 0; i < members + 4; ++i) nodes.push_back(static_cast<std::uint32_t>(rng.below(3)));
  std::vector<Fate> fates;
  const std::uint64_t count = 1 + rng.below(4);
  std::string text;
  for (std::uint64_t i = 0; i < count; ++i) {
    constexpr const char* names[] = {"dies", "grows", "breaks", "splits", "leaves"};
    const std::uint64_t kind = rng.below(5);
    fates.push_back({static_cast<Fate::Kind>(kind), static_cast<std::uint32_t>(rng.below(8)),
                     rng.below(rng.chance(0.3) ? 8
                               : per_slot      ? 200
                                               : 90),
                     rng.chance(0.7), rng.chance(0.5)});
    text += fmt::format("{} {} at {}{}{}; ", names[kind], fates.back().whom, fates.back().at, fates.back().comes_back ? ", comes back" : "",
                        fates.back().with_its_node ? ", with its node" : "");
  }
  INFO(*name_of(copies(zero(stage))) << ", gradients " << (per_slot ? "per slot" : "per step") << ", " << members << " members, "
                                     << text_of(nodes) << ", checkpoint every " << checkpoint.every << ": " << text);
  const Exchange exchange = rng.chance(0.5) ? Exchange::automatic : per_slot ? Exchange::per_slot : Exchange::per_step;
  const std::uint64_t slots = 1 + rng.below(12);
  Plan plan = rng.chance(0.7) ? placed_plan(copies, stage, slots, exchange) : toy_plan(stage, slots, exchange);
  plan.memory_per_rank = rng.chance(0.5) ? 60'000 + rng.below(400'000) : 0;
  plan.leaves = rng.chance(0.5) ? DType::bf16 : DType::f32;
  if (const Sharding cut = plan.placement.optimizer; cut == Sharding::sharded || cut == Sharding::sharded_in_node)
    checkpoint.in_memory_every = in_memory_every;
  INFO("in memory every " << checkpoint.in_memory_every << " slots " << slots << ", exchange " << static_cast<int>(exchange) << " memory "
                          << plan.memory_per_rank << " leaves " << static_cast<int>(plan.leaves));
  const std::uint64_t state_rate = rng.chance(0.5) ? beside_slots : before_slots;
  INFO((state_rate > 0 ? "state beside slots" : "state before slots"));
  plan.overlap = rng.chance(0.5);
  INFO((plan.overlap ? "with overlap" : "without overlap"));
  ElasticWorld world{members, fates, toy({.plan = plan, .checkpoint = checkpoint}), nodes, {}, {}, false, state_rate};
  auto& results = world.wait();
  std::size_t done = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Member& m = results[i];
    const bool came_late = !m.outcome && !m.failure;
    const bool heard_late = m.failure && m.failure->code == Code::generation_over;
    if (world.was_killed(i) || came_late || heard_late) continue;
    INFO("member " << i);
    ended_alike(m, slots, plan.leaves);
    CHECK(m.steps_begun == 7);
    ++done;
  }
  const bool none_was_left =
      std::ranges::any_of(fates, [](const Fate& f) { return f.kind == Fate::Kind::dies || f.kind == Fate::Kind::leaves; });
  CHECK((done > 0 || none_was_left));
}

}  // namespace elrun::test
