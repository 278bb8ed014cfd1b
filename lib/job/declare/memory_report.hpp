#pragma once
/// \file What a rank's memory comes to, in sentences for people: at `seal()`, and where it does not fit. Core.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/plan.hpp>

#include "lib/job/declare/layout.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/state/shard_map.hpp"

namespace elrun::inline v0 {

/// Why `rank` cannot hold its part on a machine with so much memory, swap included. Nothing: it can. Asked before anything is allocated, for
/// what is more than the whole machine has would end the process without a word, or with bad_alloc. `checkpoints`: what in-memory checkpoints take.
[[nodiscard]] std::optional<std::string> exceeds_machine(const Plan& plan, const std::vector<UnitSpec>& units, const Layout& layout,
                                                         const ShardMap& shards, std::uint32_t rank, std::uint64_t machine_bytes,
                                                         std::uint64_t checkpoints = 0);

/// What mirrored state costs in this world and what it saves, in a sentence or two. Nothing for other placements. `nodes`: by rank, the number of its node.
[[nodiscard]] std::optional<std::string> mirroring_line(const Plan& plan, const Layout& layout, const ShardMap& shards,
                                                        std::span<const std::uint32_t> nodes);

/// Why in-memory checkpoints cannot be made, where all else lies on a device.
[[nodiscard]] std::string checkpoints_exceed_machine(std::uint64_t checkpoints, std::uint64_t machine_bytes);

/// What in-memory checkpoints cost in this world and what they save, in a sentence or two. `nodes`: by rank, the number of its node.
[[nodiscard]] std::string memory_checkpoints_line(const Plan& plan, const Layout& layout, std::span<const std::uint32_t> nodes,
                                                  std::uint64_t every, DeviceKind where = DeviceKind::host);

/// What one rank holds once all is allocated.
struct HeldMemory {
  RankBytes bytes;
  bool per_slot = false;      ///< Gradients are exchanged slot by slot.
  std::uint32_t buffers = 0;  ///< For whole gradients, or partial sums of the shard.
};
/// The line of `seal()`: the model's size, bytes per rank by state, and how slots fall on ranks.
[[nodiscard]] std::string memory_line(const Plan& plan, const std::vector<UnitSpec>& units, const Layout& layout, const HeldMemory& holds,
                                      std::uint32_t world);

}  // namespace elrun::inline v0
