#pragma once
/// \file One rank's gradients: folded slot by slot, exchanged once per step, finished by the owners of the shards.
///
/// Leaves are made in a stack of buffers and folded up to the maximal nodes of this rank's slots. One exchange brings
/// every node's part to the rank that folds it, which makes the rest of the canonical tree's additions; another one brings the
/// sums to all who hold that part of the state. The reduced gradient lies in the first buffer: in what this rank holds.
/// Where the plan's leaves are bf16 each is rounded before it is added to anything.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reduce.hpp"
#include "lib/job/declare/layout.hpp"
#include "lib/job/gradients/leaves.hpp"
#include "lib/job/gradients/tree.hpp"
#include "lib/job/state/arena.hpp"
#include "lib/job/state/delivery.hpp"
#include "lib/job/state/shard_map.hpp"
#include "lib/job/state/shared_buffers.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Memory of Gradients. Who makes them for the next world gives them that of the last one, for memory that is taken anew costs more than what is done in it.
struct GradientBuffers {
  std::vector<Arena<float>> whole;     ///< Each for a whole gradient. They are the same in every world, and only their number changes.
  std::vector<Arena<float>> received;  ///< In one of them other ranks' nodes arrive: the smallest that is large enough.
  /// What is not needed now stays here for a later world, and memory that is much larger than needed is taken. Otherwise what is not needed is given back, and memory for what arrives is a
  /// quarter larger than needed at most.
  bool keeps = false;
};

/// More fields than 15: all but the arrays are the plan of one exchange in one world, made in the constructor and never changed.
class Gradients {
 public:
  Gradients() = default;
  /// `slots_by_rank`: see assign_slots. `shared_buffers`: where what goes to others is made, if peers may read it there; all
  /// else lies in its private memory. Without it, in the host's. `before`: memory of the same layout, from which this takes what it needs.
  Gradients(const Layout& layout, const std::vector<std::vector<std::uint32_t>>& slots_by_rank, const ShardMap& shards, std::uint32_t rank,
            Reduce reduce = Reduce::exact, DType leaves = DType::f32, SharedBuffers* shared_buffers = nullptr,
            GradientBuffers* before = nullptr);
  /// Its memory goes there. Nothing is done with this one any more.
  void hand_on(GradientBuffers& to);

  /// What peers may be shown.
  [[nodiscard]] std::vector<SharedBuffer> shared() const;
  /// Where the leaf of this rank's i-th slot is made: a whole gradients' space, contents unspecified.
  [[nodiscard]] float* leaf(std::size_t i) const { return buffer(schedule_.buffer[i]); }
  /// Memory for a leaf that is thrown away, before this rank's first is made.
  [[nodiscard]] float* first() const { return buffer(0); }
  /// The leaf is final: it is added to what it completes.
  void fold_leaf(std::size_t i);
  /// After all of this rank's leaves. `squares`, in the same memory: the sum of squares of each granule that this rank folds, in the order of its
  /// pieces. A failure leaves the contents unspecified.
  Result<void> reduce(JobWorld& world, std::span<float> squares);
  /// The sum over all slots, not yet divided by their number.
  [[nodiscard]] const float* reduced() const { return buffer(0); }

  [[nodiscard]] std::uint32_t buffers() const { return buffers_; }
  [[nodiscard]] std::uint64_t room_to_receive() const { return received_.capacity(); }  ///< Elements.
  [[nodiscard]] std::uint64_t exchange_bytes() const { return received_.bytes() + received_leaves_.bytes() + own_leaves_.bytes(); }

 private:
  struct Held {  // a node of the tree that is there after the exchange
    TreeNode node;
    ReduceOperand operand;
  };
  void write_tables(std::uint64_t leaves, const std::vector<Held>& held);
  void pack_leaves();
  [[nodiscard]] float* buffer(std::uint64_t i) const { return partials_[i].data(); }
  Memory* memory_ = &host_memory();
  std::uint64_t space_ = 0;
  FoldSchedule schedule_;
  std::uint32_t buffers_ = 0;
  std::vector<Arena<float>> partials_;
  Arena<float> received_;
  // Where leaves are bf16, those that are no part of a sum when they travel do so packed.
  bool rounds_ = false;
  std::vector<std::uint32_t> packed_;  // buffers of this rank's
  Arena<float> own_leaves_;            // the shard's part of each of them, for packing is in place
  Arena<bf16> received_leaves_;
  std::vector<Piece> shard_;  // that this rank folds
  std::vector<SendList> sends_;
  std::vector<ReceiveList> receives_;
  // What is left of the tree: an operand for each node, in the tree's order, and the pieces of the shard.
  Arena<ReduceOperand> operands_;
  Arena<ReducePiece> runs_;
  ReduceTable table_;
  bool delivers_ = false;  // some rank holds what another folds
  Delivery sums_;
};

}  // namespace elrun::inline v0
