#pragma once
/// \file What a placement costs, worked out before anything is allocated: bytes per rank by state, slots and idle time.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <elrun/plan.hpp>

#include "lib/job/declare/layout.hpp"
#include "lib/job/state/shard_map.hpp"

namespace elrun::inline v0 {

/// Of one rank. Activations and the transport's buffers are not the job's and not counted.
struct RankBytes {
  std::uint64_t parameters = 0;  ///< There from seal() on.
  std::uint64_t gradients = 0;   ///< Buffers in which leaves are made and folded, or partial sums of the shard.
  std::uint64_t optimizer = 0;
  std::uint64_t exchange =
      0;  ///< Where other ranks' sums arrive, once per step. Where `memory_per_rank` is 0 a rank may have a quarter more after a change of the world; or what a loss needs, reserved.
  std::uint64_t in_use = 0;  ///< While the largest unit is in use, where it is not held: its weights, its leaf, what arrives;
      ///< with overlap also the weights and the leaf of a second one. On a device: the buffers for them. Weights in bf16 are buffers
      ///< everywhere, with what others are given of them.
  [[nodiscard]] std::uint64_t all() const { return parameters + gradients + optimizer + exchange + in_use; }
  friend bool operator==(const RankBytes&, const RankBytes&) = default;
};
/// Of each rank of a world, with what it holds and folds. `Exchange::automatic` is taken as if there were no limit. `where`: where the arrays lie.
[[nodiscard]] std::vector<RankBytes> bytes_by_rank(const Layout& layout, const Placement& placement, const ShardMap& shards,
                                                   Optimizer optimizer, std::uint32_t slots, Reduce reduce = Reduce::exact,
                                                   DType leaves = DType::f32, bool overlap = false, DeviceKind where = DeviceKind::host);
/// The same for nodes that have `ranks_per_node` each, the last one what is left.
[[nodiscard]] std::vector<RankBytes> bytes_by_rank(const Layout& layout, const Placement& placement, Optimizer optimizer,
                                                   std::uint32_t slots, std::uint32_t world, std::uint32_t ranks_per_node,
                                                   Reduce reduce = Reduce::exact, DType leaves = DType::f32, bool overlap = false,
                                                   DeviceKind where = DeviceKind::host);

/// What a rank takes beside the shard that it holds while that is cut anew, for it has both until all have their new ones: moments, and where parameters are sharded, those. On the
/// host parameters that are in both stay where they are.
[[nodiscard]] std::uint64_t recut_bytes(const Layout& layout, const Placement& placement, Optimizer optimizer, Cut held, Cut next,
                                        DeviceKind where = DeviceKind::host);
/// The most that a rank of a world takes so when its first or its last rank is lost, and when that one comes back. `nodes`: by rank. 0: nothing is cut anew.
[[nodiscard]] std::uint64_t recut_bytes(const Layout& layout, const Placement& placement, Optimizer optimizer,
                                        std::span<const std::uint32_t> nodes, DeviceKind where = DeviceKind::host);

/// The most that a rank of a world takes of the host's memory for in-memory checkpoints (save/memory_checkpoints.hpp): its part of one, and of the next one while that is made;
/// where arrays lie on a device, also what goes to others. `nodes`: by rank.
[[nodiscard]] std::uint64_t memory_checkpoint_bytes(const Layout& layout, Optimizer optimizer, std::span<const std::uint32_t> nodes,
                                                    DeviceKind where = DeviceKind::host);

/// What one rank sends to others, in bytes of arrays: votes, needs and headers are not counted.
struct RankSends {
  std::uint64_t gradients = 0;  ///< In a step: leaves or partial sums, to those who fold them.
  std::uint64_t sums = 0;       ///< In a step: what it folded, to the other ranks that hold it.
  std::uint64_t weights =
      0;  ///< Where parameters are whole and the optimizer is not: in a step. Where parameters are sharded: each time that all ranks use all units.
  [[nodiscard]] std::uint64_t all() const { return gradients + sums + weights; }
  friend bool operator==(const RankSends&, const RankSends&) = default;
};
/// Of each rank. As `bytes_by_rank`.
[[nodiscard]] std::vector<RankSends> sends_by_rank(const Layout& layout, const Placement& placement, const ShardMap& shards,
                                                   std::uint32_t slots, Reduce reduce = Reduce::exact, DType leaves = DType::f32);

/// What `Exchange::automatic` comes to in a world; every rank works it out alike. The bits are the same.
struct ChosenExchange {
  Placement placement;      ///< With an exchange that is not automatic.
  std::uint64_t bytes = 0;  ///< Of the rank that holds most; 0 where there is no limit.
  std::string why;          ///< Where memory has decided: what the other one would take; else empty.
};
[[nodiscard]] ChosenExchange choose_exchange(const Plan& plan, const Layout& layout, const ShardMap& shards,
                                             DeviceKind where = DeviceKind::host);

/// "8 slots per step on 3 rank(s), 2 to 3 each, 89 % of the compute"
[[nodiscard]] std::string slots_line(std::uint64_t slots, std::uint32_t world);
/// Below 90 %: why, and what helps; else empty.
[[nodiscard]] std::string efficiency_warning(std::uint64_t slots, std::uint32_t world);
/// ", weights of 3 unit(s) in bf16", or nothing.
[[nodiscard]] std::string weights_in_bf16(const Layout& layout);
/// "12.3 MB"
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);

/// All of it as a table for people: a row per placement, of the rank that holds most, and of the one that sends most. Where there are several nodes, hybrid ones too, and
/// where there are several ranks mirrored ones. `in_memory`: what in-memory checkpoints take, too.
[[nodiscard]] std::string memory_table(const Plan& plan, const std::vector<UnitSpec>& units, std::uint32_t world,
                                       std::uint32_t ranks_per_node, DeviceKind where = DeviceKind::host, bool in_memory = false);

}  // namespace elrun::inline v0
