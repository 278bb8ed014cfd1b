#include "lib/job/declare/memory_report.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/job/declare/plan.hpp"

namespace elrun::inline v0 {

std::optional<std::string> exceeds_machine(const Plan& plan, const std::vector<UnitSpec>& units, const Layout& layout,
                                           const ShardMap& shards, std::uint32_t rank, std::uint64_t machine_bytes,
                                           std::uint64_t checkpoints) {
  const Placement chosen = choose_exchange(plan, layout, shards).placement;
  const RankBytes mine = bytes_by_rank(layout, chosen, shards, plan.optimizer, static_cast<std::uint32_t>(plan.slots()), plan.reduce,
                                       plan.leaves, plan.overlap)[rank];
  if (mine.all() + checkpoints <= machine_bytes) return std::nullopt;
  const UnitSpec* largest_unit = nullptr;
  const TensorSpec* largest = nullptr;
  for (const UnitSpec& unit : units)
    for (const TensorSpec& t : unit.tensors)
      if (largest == nullptr || element_count(t.shape) > element_count(largest->shape)) largest_unit = &unit, largest = &t;
  return fmt::format(
      "rank {} would hold {} (parameters {}, gradients {}, optimizer {}, exchange {}, in use {}{}), and this machine has {} of memory, swap included. The "
      "largest tensor is '{}/{}' of {} elements. More workers or a higher stage of ZeRO take less: plan_table() says how much",
      rank, human_bytes(mine.all() + checkpoints), human_bytes(mine.parameters), human_bytes(mine.gradients), human_bytes(mine.optimizer),
      human_bytes(mine.exchange), human_bytes(mine.in_use), checkpoints > 0 ? ", in-memory checkpoints " + human_bytes(checkpoints) : "",
      human_bytes(machine_bytes), largest_unit->name, largest->name, element_count(largest->shape));
}

std::optional<std::string> mirroring_line(const Plan& plan, const Layout& layout, const ShardMap& shards,
                                          std::span<const std::uint32_t> nodes) {
  if (plan.placement.optimizer != Sharding::mirrored) return std::nullopt;
  const std::uint32_t world = shards.world();
  const std::string name = *name_of(plan.placement);
  if (world == 1) return fmt::format("{}: one worker holds the only copy; once it is lost, the job goes back to a checkpoint", name);
  const bool apart = std::ranges::any_of(nodes, [&](std::uint32_t n) { return n != nodes[0]; });
  const Placement placement = choose_exchange(plan, layout, shards).placement;
  Placement plain = placement;
  for (Sharding* sharding : {&plain.parameters, &plain.gradients, &plain.optimizer})
    if (*sharding == Sharding::mirrored) *sharding = Sharding::sharded;
  const ShardMap cut = shard_map(Sharding::sharded, nodes);
  const auto slots = static_cast<std::uint32_t>(plan.slots());
  const auto most = [&](const auto& ranks) { return std::ranges::max(ranks, {}, [](const auto& r) { return r.all(); }).all(); };
  const auto holds = [&](const Placement& p, const ShardMap& map) {
    return most(bytes_by_rank(layout, p, map, plan.optimizer, slots, plan.reduce, plan.leaves, plan.overlap));
  };
  const auto sends = [&](const Placement& p, const ShardMap& map) {
    auto ranks = sends_by_rank(layout, p, map, slots, plan.reduce, plan.leaves);
    if (p.parameters != Sharding::replicated)  // weights are as often as the program uses them
      for (RankSends& r : ranks) r.weights = 0;
    return most(ranks);
  };
  return fmt::format(
      "{}: no decided step is lost with {}. Memory per rank: {} instead of {}{}, and {} more where a loss cuts the shards anew (an elastic job takes them in advance if memory is free). Sent per step by a rank: {} instead of {}; two ranks do the optimizer's work for each shard",
      name, apart ? "one worker or one node" : "one worker; all are on one node, which has both copies",
      human_bytes(holds(placement, shards)), human_bytes(holds(plain, cut)),
      world == 2 ? " (two workers hold everything each, as replicated state)" : "",
      human_bytes(recut_bytes(layout, placement, plan.optimizer, nodes)), human_bytes(sends(placement, shards)),
      human_bytes(sends(plain, cut)));
}

std::string checkpoints_exceed_machine(std::uint64_t checkpoints, std::uint64_t machine_bytes) {
  return fmt::format(
      "in-memory checkpoints would take {} of the host's memory on this rank, and this machine has {}, swap included. More workers take less each; or leave checkpoint.in_memory_every out",
      human_bytes(checkpoints), human_bytes(machine_bytes));
}

std::string memory_checkpoints_line(const Plan& plan, const Layout& layout, std::span<const std::uint32_t> nodes, std::uint64_t every,
                                    DeviceKind where) {
  if (nodes.size() == 1) return "in-memory checkpoints: none is made while there is one worker, for nobody else could hold a part of it";
  const bool apart = std::ranges::any_of(nodes, [&](std::uint32_t n) { return n != nodes[0]; });
  return fmt::format(
      "in-memory checkpoints every {}: the loss of {} costs no more than these, and no storage is read. They take {} more of each rank's host memory",
      every == 1 ? "step" : fmt::format("{} steps", every),
      apart ? "one worker or one node" : "one worker (all are on one node, which has both parts)",
      human_bytes(memory_checkpoint_bytes(layout, plan.optimizer, nodes, where)));
}

std::string memory_line(const Plan& plan, const std::vector<UnitSpec>& units, const Layout& layout, const HeldMemory& holds,
                        std::uint32_t world) {
  std::uint64_t parameters = 0, largest = 0;
  for (const UnitSpec& unit : units)
    for (const TensorSpec& t : unit.tensors) parameters += element_count(t.shape);
  for (const UnitLayout& unit : layout.units) largest = std::max(largest, unit.trainable * sizeof(float));
  const bool gathers = plan.placement.parameters != Sharding::replicated;
  const bool overlaps = plan.overlap && (gathers || holds.per_slot) && world > 1;
  const std::string_view in_use = overlaps ? "two units in use or on their way" : "the units in use";
  const RankBytes& bytes = holds.bytes;
  const std::string gradients =
      holds.per_slot ? fmt::format("{} ({} partial sum(s), folded by the owners in every slot) and {}", human_bytes(bytes.gradients),
                                   holds.buffers, in_use)
                     : fmt::format("{} ({} buffers: folded here, exchanged once per step)", human_bytes(bytes.gradients), holds.buffers);
  return fmt::format(
      "{} parameters in {} unit(s), of which the largest is {}, {}{}{}; bytes per rank: parameters {}{}{}, gradients {}, optimizer {}, "
      "exchange {}; {}",
      parameters, units.size(), human_bytes(largest), *name_of(plan.placement), weights_in_bf16(layout),
      plan.leaves == DType::f32 ? "" : ", gradients rounded to bf16 slot by slot", human_bytes(bytes.parameters), gathers ? " and " : "",
      gathers ? in_use : "", gradients, human_bytes(bytes.optimizer), human_bytes(bytes.exchange), slots_line(plan.slots(), world));
}

}  // namespace elrun::inline v0
