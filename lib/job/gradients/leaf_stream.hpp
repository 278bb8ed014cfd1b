#pragma once
/// \file The evaluation of the canonical tree that keeps no whole gradient: leaves go to the owners of their shards as soon
/// as they are made, and the owners fold.
///
/// In micro-step i rank r runs slot i W + r. Once the leaf of a unit is final it is handed off: every other rank gets the
/// part that belongs to its shard. When an owner has a unit's parts of all slots of the micro-step, it adds them up in the
/// order of the slots, on a stack of partial sums of its shard: a binary counter, whose additions are the tree's. Units may
/// come in any order, and in another one on each rank; what came early waits. A leaf is made in fp32; where the plan's leaves are
/// bf16 it is packed in place once it is final, and travels and waits so. Whole granules have an even number of elements.
///
/// Leaves are made on one thread (`open`, `finish_leaf`); others, that are final, may be handed off on another at the same time
/// (`part_for`, `arriving`, `arrived`). All else is called when nothing of that happens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/job/arrays/rounds_memory.hpp"
#include "lib/job/declare/layout.hpp"
#include "lib/job/gradients/leaf_memory.hpp"
#include "lib/job/gradients/leaves.hpp"
#include "lib/job/gradients/tree.hpp"
#include "lib/job/state/arena.hpp"
#include "lib/job/state/delivery.hpp"
#include "lib/job/state/shard_map.hpp"
#include "lib/job/state/shared_buffers.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Slots of each rank, ascending: i W + r.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> deal_slots(std::uint32_t slots, std::uint32_t world);

/// More fields than 15: half of them are the plan of one world, made in the constructor and never changed; the others are the memory of leaves and sums,
/// and who has handed off what, which change together in `arrived`, `fold` and `next`.
class LeafStream {
 public:
  LeafStream() = default;
  /// `shared_buffers`: where sums lie that others hold; all else lies in its private memory, of which `rounds` is. What is done on the thread of a round is done in its
  /// order. Both outlive it.
  LeafStream(const Layout& layout, std::uint32_t slots, const ShardMap& shards, std::uint32_t rank, DType leaves,
             SharedBuffers& shared_buffers, RoundsMemory& rounds);

  /// What peers may be shown: the sums, where others hold them. Leaves are not: their pages come and go.
  [[nodiscard]] const std::optional<SharedBuffer>& shared() const { return stack_.shared(); }
  /// Memory that does not come and go is there from now on for so many leaves at one time.
  void make_room(std::size_t leaves) { leaves_->make_room(shapes_.rank < std::min(world(), slots_) ? leaves : 0); }
  /// A new step; also after one that was broken off. The last reduced gradient is still there.
  void begin();
  /// Ranks with a slot in this micro-step: 0 .. busy() - 1.
  [[nodiscard]] std::uint32_t busy() const;
  /// Whether all slots are folded.
  [[nodiscard]] bool complete() const { return first_slot_ >= slots_; }

  /// Makes the leaf of a unit, all zeros; also where there is one of a micro-step that was broken off.
  void open(std::uint32_t unit);
  /// Where the leaf of an open unit is made.
  [[nodiscard]] float* leaf(std::uint32_t unit) const { return leaves_->leaf(unit); }

  /// The leaf of an open unit is final, and rounded if the plan says so.
  void finish_leaf(std::uint32_t unit);
  /// Of a final leaf: what goes to `rank`.
  [[nodiscard]] std::span<const std::byte> part_for(std::uint32_t unit, std::uint32_t rank) const;
  /// Where what `rank` hands off arrives.
  [[nodiscard]] std::span<std::byte> arriving(std::uint32_t unit, std::uint32_t rank);
  /// `rank` handed the unit off, and its part is here. False: it cannot have, or not again.
  [[nodiscard]] bool arrived(std::uint32_t unit, std::uint32_t rank);
  /// Of each busy rank, units handed off in this micro-step.
  [[nodiscard]] std::span<const std::uint32_t> handed_by() const { return std::span{handed_by_}.first(busy()); }
  /// On to the next micro-step. False: some busy rank did not hand off all units.
  [[nodiscard]] bool next();

  /// After the last micro-step.
  Result<void> finish(JobWorld& world);
  /// The sum over all slots, not yet divided by their number: of what this rank folds, as a shard of its own ...
  [[nodiscard]] const float* folded() const { return stack_.data(); }
  /// ... and of what it holds, as that shard.
  [[nodiscard]] const float* reduced() const { return delivers_ ? held_.data() : stack_.data(); }

  [[nodiscard]] std::uint32_t partials() const { return depth_; }
  [[nodiscard]] std::uint64_t bytes() const;      ///< That are always there.
  [[nodiscard]] std::uint64_t bytes_max() const;  ///< And with leaves and what arrived, so far; on any thread.

 private:
  [[nodiscard]] std::uint32_t world() const { return shapes_.world; }
  [[nodiscard]] std::span<float> whole_leaf(std::uint32_t unit) const { return {leaves_->leaf(unit), shapes_.units[unit].size()}; }
  void begin_micro_step();
  void fold(std::uint32_t unit);

  Memory* memory_ = &host_memory();
  RoundsMemory* rounds_ = nullptr;  // none: made without anything
  std::uint32_t slots_ = 0;
  std::vector<Cut> folds_;        // by rank
  bool delivers_ = false;         // some rank holds what another folds
  std::uint32_t first_slot_ = 0;  // of this micro-step
  LeafShapes shapes_;
  std::vector<std::uint64_t> places_;  // by unit: where this rank's part of it begins in its shard
  std::uint64_t shard_elements_ = 0;
  FoldSchedule schedule_;
  std::uint32_t depth_ = 1;
  Arena<float> stack_;  // partial sums of the shard, one after the other
  std::unique_ptr<LeafMemory> leaves_;
  std::vector<std::uint8_t> open_;        // by unit; bytes, for two threads look at those of different units
  std::vector<bool> handed_;              // by unit and rank
  std::vector<std::uint32_t> here_;       // by unit: ranks that handed it off
  std::vector<std::uint32_t> handed_by_;  // by rank: units it handed off
  Arena<float> held_;
  Delivery sums_;
  std::vector<Common> own_;  // what this rank folds and holds
};

}  // namespace elrun::inline v0
