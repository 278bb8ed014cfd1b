#pragma once
/// \file NormTree: the global norm of the gradient, whatever the world. Each rank brings the sums of squares of what it folded.

#include <cstdint>
#include <span>
#include <vector>

#include "lib/job/declare/layout.hpp"
#include "lib/job/gradients/tree.hpp"
#include "lib/job/state/arena.hpp"
#include "lib/job/state/delivery.hpp"
#include "lib/job/state/shard_map.hpp"

namespace elrun::inline v0 {

/// The global norm: one sum of squares per granule, folded by the canonical tree over all granules of the model.
class NormTree {
 public:
  NormTree() = default;
  /// `space`: in which the gradient will be given. `memory`: outlives it.
  NormTree(const Layout& layout, const ShardMap& shards, std::uint32_t rank, Space space, Memory& memory = host_memory());
  /// Nodes that a rank brings.
  [[nodiscard]] std::size_t nodes(std::uint32_t rank) const { return nodes_[rank].size(); }
  /// One sum of squares for each granule that this rank folds, in the order of its pieces: for whoever folds to fill.
  [[nodiscard]] std::span<float> squares() const { return sums_.span(); }
  /// Fills them from the gradient that this rank folded.
  void square(const float* gradient);
  /// This rank's nodes, from its sums of squares.
  void fold_shard(std::span<float> out);
  /// The sum of squares over the model, from all ranks' nodes.
  [[nodiscard]] float root(const std::vector<std::span<const float>>& by_rank) const;

 private:
  std::uint32_t rank_ = 0;
  Space space_ = Space::gradients;
  std::uint64_t granules_ = 0;
  std::vector<Piece> shard_;
  std::vector<std::vector<TreeNode>> nodes_;
  Memory* memory_ = &host_memory();
  Arena<float> sums_;        // one per granule of the shard
  std::vector<float> read_;  // the same on the host, where the memory is a device's
  struct Place {
    TreeNode node;
    std::uint32_t rank, index;
  };
  std::vector<Place> places_;  // of all ranks' nodes, from left to right
};

}  // namespace elrun::inline v0
