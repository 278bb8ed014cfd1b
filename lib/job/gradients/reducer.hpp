#pragma once
/// \file GradientReducer: leaf gradients in, this rank's reduced shard and the nodes of the global norm out. One interface for both
/// evaluations of the canonical tree and for the fast way:
///
/// * once per step (gradients.hpp): a rank keeps whole gradients, and one exchange after its slots reduces them; exact or fast;
/// * per slot (leaf_stream.hpp): each unit's leaf is handed off in the slot that made it, and the owners fold.
///
/// A reducer is for one world, and one way to hand out the slots there: which slots a rank runs, what it folds and what it gets follow from the shard map. It is made anew when one of the two changes, and takes the
/// buffers for whole gradients of the one before over. Which of the evaluations it has never changes a bit.
///
/// Called by the job's thread. `stream()` is also used by exchange rounds on the communication thread, as leaf_stream.hpp says.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <elrun/plan.hpp>

#include "lib/job/gradients/gradients.hpp"
#include "lib/job/gradients/leaf_stream.hpp"
#include "lib/job/gradients/norm.hpp"

namespace elrun::inline v0 {

class GradientReducer {
 public:
  enum class Exchanges : std::uint8_t { per_step, per_slot };

  GradientReducer() = default;
  /// `slots`: of a step. `shared_buffers`: makes what peers read, and outlives the constructor; its private memory outlives the
  /// reducer. `rounds`: of that memory; outlives the reducer. `before`: memory for the same layout, from which this takes what it needs.
  /// `computes`: by rank, whether it runs slots; empty: all do. Per slot all do.
  GradientReducer(const Layout& layout, const ShardMap& shards, std::uint32_t rank, std::uint32_t slots, Exchanges exchanges, Reduce reduce,
                  DType leaves, SharedBuffers& shared_buffers, RoundsMemory& rounds, GradientBuffers* before = nullptr,
                  const std::vector<bool>& computes = {});
  /// Its memory goes there. Nothing is done with this one any more.
  void hand_on(GradientBuffers& to) { gradients_.hand_on(to); }

  [[nodiscard]] bool is_per_slot() const { return exchanges_ == Exchanges::per_slot; }
  [[nodiscard]] const std::vector<std::vector<std::uint32_t>>& slots_by_rank() const { return slots_; }
  [[nodiscard]] const std::vector<std::uint32_t>& my_slots() const { return slots_[rank_]; }
  /// Most slots that any rank has.
  [[nodiscard]] std::size_t slots_of_busiest() const;
  /// In which space `reduced` lies.
  [[nodiscard]] Space space() const { return is_per_slot() ? Space::shard : Space::gradients; }

  /// As LeafStream; per step there is nothing to do.
  void make_room(std::size_t leaves) {
    if (is_per_slot()) stream_.make_room(leaves);
  }

  // ---- one slot after the other. `slot` counts this rank's slots; none: a slot that is audited, and thrown away

  /// A new step; also after one that was broken off.
  void begin_step();
  /// Where the gradient of the unit is made in that slot. Per slot alone once the unit was begun in it.
  [[nodiscard]] float* made_in(std::uint32_t unit, std::optional<std::size_t> slot) const;
  /// Per slot: a leaf of zeros is opened. Per step: the unit's gradient is set to zero.
  void begin_unit(std::uint32_t unit, std::optional<std::size_t> slot);
  /// The hash of the whole gradient of that slot. Per step alone.
  [[nodiscard]] std::uint64_t hash_of(std::optional<std::size_t> slot) const;
  /// All gradients of the slot are final.
  void end_slot(std::size_t slot);
  /// Per slot alone: the leaves.
  [[nodiscard]] LeafStream& stream() { return stream_; }
  [[nodiscard]] const LeafStream& stream() const { return stream_; }

  // ---- after the slots

  /// A failure leaves the contents unspecified.
  Result<void> reduce(JobWorld& world);
  /// The sum over all slots, not yet divided by their number, of what this rank holds.
  [[nodiscard]] const float* reduced() const { return is_per_slot() ? stream_.reduced() : gradients_.reduced(); }
  /// By rank: how many nodes of the norm it brings.
  [[nodiscard]] std::vector<std::size_t> norm_nodes() const;
  /// This rank's nodes, after `reduce`.
  void fold_norm(std::span<float> nodes);
  /// The sum of squares over the model, from all ranks' nodes.
  [[nodiscard]] float sum_of_squares(const std::vector<std::span<const float>>& nodes_by_rank) const { return norm_.root(nodes_by_rank); }

  // ---- memory

  /// What peers may be shown.
  [[nodiscard]] std::vector<SharedBuffer> shared() const;
  [[nodiscard]] std::uint64_t bytes() const;           ///< Of buffers or partial sums: always there.
  [[nodiscard]] std::uint64_t exchange_bytes() const;  ///< Where other ranks' sums arrive, once per step.
  [[nodiscard]] std::uint64_t in_use_bytes_max() const;
  /// Elements of other ranks' sums for which there is memory, once per step.
  [[nodiscard]] std::uint64_t room_to_receive() const { return gradients_.room_to_receive(); }
  /// Buffers for whole gradients, or partial sums of the shard.
  [[nodiscard]] std::uint32_t buffers() const { return is_per_slot() ? stream_.partials() : gradients_.buffers(); }

 private:
  Memory* memory_ = &host_memory();
  Exchanges exchanges_ = Exchanges::per_step;
  std::uint32_t rank_ = 0;
  std::vector<std::vector<std::uint32_t>> slots_ = std::vector<std::vector<std::uint32_t>>(1);  // by rank
  std::vector<LeafRange> units_;                                                                // in the gradients' space
  std::uint64_t space_ = 0;                                                                     // elements of it
  [[nodiscard]] float* whole(std::optional<std::size_t> slot) const { return slot ? gradients_.leaf(*slot) : gradients_.first(); }
  Gradients gradients_;
  LeafStream stream_;
  NormTree norm_;
};

}  // namespace elrun::inline v0
