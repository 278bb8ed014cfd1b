#include "lib/job/gradients.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/fold.hpp"
#include "lib/job/summands.hpp"

namespace elrun::inline v0 {

Gather gather_shards(const Layout& layout, std::uint32_t world, std::uint32_t rank, std::span<float> memory,
                     Space space) {
  Gather out{std::vector<SendList>(world), std::vector<ReceiveList>(world)};
  const auto part = [&](const Piece& p) {
    return memory.subspan(begin_in(space, p), p.size());
  };
  const auto mine = pieces(layout, world, rank);
  for (std::uint32_t r = 0; r < world; ++r) {
    if (r == rank) continue;
    for (const Piece& p : mine) out.sends[r].push_back(std::as_bytes(part(p)));
    for (const Piece& p : pieces(layout, world, r)) out.receives[r].push_back(std::as_writable_bytes(part(p)));
  }
  return out;
}

Gradients::Gradients(const Layout& layout, const std::vector<std::vector<std::uint32_t>>& slots_by_rank,
                     std::uint32_t rank, bool replicate, Reduce reduce)
    : space_{layout.gradients}, replicate_{replicate} {
  const auto world = static_cast<std::uint32_t>(slots_by_rank.size());
  const Summands tree = summands(slots_by_rank, reduce);
  schedule_ = tree.schedules[rank];
  buffers_ = std::max(schedule_.depth, 1u);  // a rank without slots still owns a shard
  partials_ = Arena<float>{buffers_ * space_};
  shard_ = pieces(layout, world, rank);
  const std::uint64_t shard_elements = elements(shard_);

  struct Held {
    TreeNode node;
    std::uint32_t operand;
  };
  std::vector<Held> held;
  sends_.resize(world);
  receives_.resize(world);
  std::uint64_t received_nodes = 0;
  for (std::uint32_t r = 0; r < world; ++r)
    if (r != rank) received_nodes += tree.schedules[r].nodes.size();
  received_ = Arena<float>{received_nodes * shard_elements};
  float* next = received_.data();
  for (std::uint32_t r = 0; r < world; ++r) {
    const auto& nodes = tree.schedules[r].nodes;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      held.push_back({nodes[n], static_cast<std::uint32_t>(operands_.size())});
      if (r == rank) {
        operands_.push_back({buffer(n), true});
      } else {
        operands_.push_back({next, false});
        for (const Piece& p : shard_)
          receives_[r].push_back(std::as_writable_bytes(std::span{next + p.place, p.size()}));
        next += shard_elements;
      }
    }
    if (r == rank) continue;
    const auto theirs = pieces(layout, world, r);
    for (std::size_t n = 0; n < schedule_.nodes.size(); ++n)
      for (const Piece& p : theirs)
        sends_[r].push_back(std::as_bytes(std::span<const float>{buffer(n) + p.gradient, p.size()}));
  }
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.node.begin < b.node.begin; });
  const auto given = [&](TreeNode node) -> std::optional<std::uint32_t> {
    const auto at = std::lower_bound(held.begin(), held.end(), node.begin,
                                     [](const Held& h, std::uint64_t b) { return h.node.begin < b; });
    if (at != held.end() && at->node == node) return at->operand;
    return std::nullopt;
  };
  root_ = fold(TreeNode{0, tree.count}, given, [&](std::uint32_t left, std::uint32_t right) {
    additions_.push_back({left, right});
    return left;
  });
  if (replicate && world > 1) gather_ = gather_shards(layout, world, rank, partials_.span(0, space_), Space::gradients);
}

void Gradients::fold_leaf(std::size_t i) {
  std::uint64_t top = schedule_.buffer[i];
  for (std::uint32_t m = 0; m < schedule_.merges[i]; ++m, --top)
    add_into(std::span{buffer(top - 1), space_}, std::span<const float>{buffer(top), space_});
}

Result<void> Gradients::reduce(World& world) {
  ELRUN_TRY(world.exchange(sends_, receives_));
  for (const Piece& p : shard_)
    for (std::uint64_t begin = 0; begin < p.size(); begin += fold_chunk) {
      const std::uint64_t count = std::min(fold_chunk, p.size() - begin);
      const auto chunk = [&](std::uint32_t o) {
        return std::span{operands_[o].base + (operands_[o].mine ? p.gradient : p.place) + begin, count};
      };
      for (const Addition& a : additions_) add_into(chunk(a.left), chunk(a.right));
      float* const result = buffer(0) + p.gradient + begin;
      if (const auto root = chunk(root_); root.data() != result) std::memcpy(result, root.data(), root.size_bytes());
    }
  if (replicate_) ELRUN_TRY(world.exchange(gather_.sends, gather_.receives));
  return {};
}

NormTree::NormTree(const Layout& layout, std::uint32_t world, std::uint32_t rank, Space space)
    : rank_{rank},
      space_{space},
      granules_{layout.granules()},
      shard_{pieces(layout, world, rank)},
      sums_{elements(shard_) / granule} {
  for (std::uint32_t r = 0; r < world; ++r) {
    std::vector<LeafRange> runs;
    for (const Piece& p : pieces(layout, world, r))
      runs.push_back({p.gradient / granule, (p.gradient + p.size()) / granule});
    nodes_.push_back(maximal_nodes(runs, granules_));
    for (std::uint32_t i = 0; i < nodes_[r].size(); ++i) places_.push_back({nodes_[r][i], r, i});
  }
  std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.node.begin < b.node.begin; });
}

void NormTree::fold_shard(const float* gradient, std::span<float> out) {
  for (const Piece& p : shard_)
    sums_of_squares({gradient + begin_in(space_, p), p.size()}, sums_.span(p.place / granule, p.size() / granule));
  // A node's granules are consecutive among mine, for all of them are mine; and its tree depends on their number alone.
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < nodes_[rank_].size(); ++i) {
    const std::uint64_t size = nodes_[rank_][i].size;
    out[i] = fold_leaves(std::span<const float>{sums_.span(first, size)}, FoldFunctor{});
    first += size;
  }
}

float NormTree::root(const std::vector<std::span<const float>>& by_rank) const {
  if (granules_ == 0) return 0.0f;
  const auto given = [&](TreeNode node) -> std::optional<float> {
    const auto at = std::lower_bound(places_.begin(), places_.end(), node.begin,
                                     [](const Place& p, std::uint64_t b) { return p.node.begin < b; });
    if (at != places_.end() && at->node == node) return by_rank[at->rank][at->index];
    return std::nullopt;
  };
  return fold(TreeNode{0, granules_}, given, FoldFunctor{});
}

}  // namespace elrun::inline v0
