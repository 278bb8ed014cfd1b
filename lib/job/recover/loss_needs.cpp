#include "lib/job/recover/loss_needs.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "lib/job/declare/memory_table.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/state/shard_map.hpp"
#include "lib/job/state/update.hpp"

namespace elrun::inline v0 {
namespace {

/// The nodes of the ranks that are left, and which of them this one is.
struct Left {
  std::vector<std::uint32_t> nodes;
  std::uint32_t rank = 0;
};

template <class IsLost>
Left without(std::span<const std::uint32_t> nodes, std::uint32_t rank, const IsLost& is_lost) {
  Left left;
  for (std::uint32_t r = 0; r < nodes.size(); ++r) {
    if (r == rank) left.rank = static_cast<std::uint32_t>(left.nodes.size());
    if (!is_lost(r)) left.nodes.push_back(nodes[r]);
  }
  return left;
}

enum class Lost : std::uint8_t { rank, rank_or_node };

std::vector<Left> worlds_after_a_loss(std::span<const std::uint32_t> nodes, std::uint32_t rank, Lost lost) {
  std::vector<std::uint32_t> others, on_my_node, on_other_nodes;
  for (std::uint32_t r = 0; r < nodes.size(); ++r) {
    if (r == rank) continue;
    others.push_back(r);
    (nodes[r] == nodes[rank] ? on_my_node : on_other_nodes).push_back(r);
  }
  std::set<std::uint32_t> lost_ranks, lost_nodes;
  for (const auto& ranks : {others, on_my_node})
    if (!ranks.empty()) lost_ranks.insert({ranks.front(), ranks.back()});
  if (lost == Lost::rank_or_node && !on_other_nodes.empty()) lost_nodes = {nodes[on_other_nodes.front()], nodes[on_other_nodes.back()]};
  std::vector<Left> out;
  for (const std::uint32_t it : lost_ranks) out.push_back(without(nodes, rank, [&](std::uint32_t r) { return r == it; }));
  for (const std::uint32_t it : lost_nodes) out.push_back(without(nodes, rank, [&](std::uint32_t r) { return nodes[r] == it; }));
  return out;
}

}  // namespace

LossNeeds needs_after_a_loss(const Plan& plan, const Layout& layout, std::span<const std::uint32_t> nodes, std::uint32_t rank) {
  LossNeeds out;
  const Cut now = shard_map(plan.placement.optimizer, nodes).cuts[rank];
  const std::size_t kinds = moments_of(plan.optimizer).size();
  for (const Left& left : worlds_after_a_loss(nodes, rank, Lost::rank_or_node)) {
    const ShardMap shards = shard_map(plan.placement.optimizer, left.nodes);
    const ChosenExchange chosen = choose_exchange(plan, layout, shards);
    const RankBytes bytes = bytes_by_rank(layout, chosen.placement, shards, plan.optimizer, static_cast<std::uint32_t>(plan.slots()),
                                          plan.reduce, plan.leaves, plan.overlap)[left.rank];
    if (!exchanges_per_slot(chosen.placement) && layout.gradients > 0) {
      out.whole_gradients = std::max(out.whole_gradients, bytes.gradients / (layout.gradients * sizeof(float)));
      if (plan.leaves == DType::f32) out.received = std::max<std::uint64_t>(out.received, bytes.exchange / sizeof(float));
    }
    if (shards.cuts[left.rank] != now && kinds > 0)
      out.moments = std::max<std::uint64_t>(out.moments, bytes.optimizer / kinds / sizeof(float));
  }
  return out;
}

std::uint64_t checkpoint_after_a_loss(const Plan& plan, const Layout& layout, std::span<const std::uint32_t> nodes, std::uint32_t rank) {
  std::uint64_t most = 0;
  for (const Left& left : worlds_after_a_loss(nodes, rank, Lost::rank))
    if (left.nodes.size() > 1) most = std::max(most, elements(pieces(layout, shard_map(Sharding::mirrored, left.nodes).cuts[left.rank])));
  return most * (1 + moments_of(plan.optimizer).size());
}

}  // namespace elrun::inline v0
