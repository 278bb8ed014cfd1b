#include "lib/job/gradients/norm.hpp"

#include <algorithm>
#include <optional>

#include "kernels/fold.hpp"
#include "kernels/granule.hpp"

namespace elrun::inline v0 {

NormTree::NormTree(const Layout& layout, const ShardMap& shards, std::uint32_t rank, Space space, Memory& memory)
    : rank_{rank},
      space_{space},
      granules_{layout.granules()},
      shard_{pieces(layout, shards.folds[rank])},
      memory_{&memory},
      sums_{elements(shard_) / granule, memory},
      read_(memory.device().kind == DeviceKind::host ? 0 : sums_.size()) {
  for (std::uint32_t r = 0; r < shards.world(); ++r) {
    std::vector<LeafRange> runs;
    for (const Piece& p : pieces(layout, shards.folds[r])) runs.push_back({p.gradient / granule, (p.gradient + p.size()) / granule});
    nodes_.push_back(maximal_nodes(runs, granules_));
    for (std::uint32_t i = 0; i < nodes_[r].size(); ++i) places_.push_back({nodes_[r][i], r, i});
  }
  std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.node.begin < b.node.begin; });
}

void NormTree::square(const float* gradient) {
  for (const Piece& p : shard_)
    memory_->sums_of_squares({gradient + begin_in(space_, p), p.size()}, sums_.span(p.place / granule, p.size() / granule));
}

void NormTree::fold_shard(std::span<float> out) {
  if (!read_.empty()) memory_->read(std::as_bytes(sums_.span()), std::as_writable_bytes(std::span{read_}));
  const std::span<const float> sums = read_.empty() ? sums_.span() : std::span<const float>{read_};
  // A node's granules are consecutive among mine, for all of them are mine; and its tree depends on their number alone.
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < nodes_[rank_].size(); ++i) {
    const std::uint64_t size = nodes_[rank_][i].size;
    out[i] = fold_leaves(sums.subspan(first, size), FoldFunctor{});
    first += size;
  }
}

float NormTree::root(const std::vector<std::span<const float>>& by_rank) const {
  if (granules_ == 0) return 0.0f;
  const auto given = [&](TreeNode node) -> std::optional<float> {
    const auto at =
        std::lower_bound(places_.begin(), places_.end(), node.begin, [](const Place& p, std::uint64_t b) { return p.node.begin < b; });
    if (at != places_.end() && at->node == node) return by_rank[at->rank][at->index];
    return std::nullopt;
  };
  return fold(TreeNode{0, granules_}, given, FoldFunctor{});
}

}  // namespace elrun::inline v0
