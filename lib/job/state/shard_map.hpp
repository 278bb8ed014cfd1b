#pragma once
/// \file ShardMap: who owns which granules of the state, in how many copies, and who folds which part of the gradient. Core.
///
/// The state is there in one or more copies. A copy is what the ranks of one set hold together, one shard each: where the state
/// is replicated every rank is a set, where it is sharded the whole world is one, and where it is sharded in nodes each node is one.
/// Nodes may have different numbers of ranks, so two copies may be cut differently.
///
/// Mirrored state is there in two copies. They are laid end to end and cut into one shard per rank, in the order of nodes, so the two holders of an
/// element are half a world apart: on different nodes where none has more than half of all ranks. With an odd number of ranks the one in the middle
/// holds the end of the first copy and the beginning of the second. Where a node has more than half, its ranks hold the first copy, and all others the second.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/plan.hpp>

#include "lib/job/declare/layout.hpp"

namespace elrun::inline v0 {

struct ShardMap {
  std::vector<Cut> cuts;              ///< By rank: its shard of its copy.
  std::vector<std::uint32_t> copies;  ///< By rank: which copy its shard is of. A shard that wraps begins the next copy.
  /// By rank: what it folds of the gradient, one part of as many as there are ranks, so that each leaf travels once however
  /// many copies there are. The sum then goes to all who hold it. A rank folds near what it holds.
  std::vector<Cut> folds;
  /// What `giver` gives `taker` where weights are gathered, so that each element comes once: of what the giver has of the taker's copy, that which the taker does
  /// not hold. Nothing: it has none of that copy. Never wraps.
  [[nodiscard]] std::optional<Cut> gives(std::uint32_t giver, std::uint32_t taker) const;
  [[nodiscard]] std::uint32_t world() const { return static_cast<std::uint32_t>(cuts.size()); }
  friend bool operator==(const ShardMap&, const ShardMap&) = default;
};
/// `nodes`: by rank, the number of its node, any numbers.
[[nodiscard]] ShardMap shard_map(Sharding sharding, std::span<const std::uint32_t> nodes);

/// By rank: nodes numbered in the order of their first ranks.
[[nodiscard]] std::vector<std::uint32_t> number_nodes(std::span<const std::string> names);
/// By rank, from what one rank knows of its own node: all others are as large, as far as the world goes.
[[nodiscard]] std::vector<std::uint32_t> guess_nodes(std::uint32_t world, std::uint32_t rank, std::uint32_t local_world,
                                                     std::uint32_t local_rank);

/// Every element that trains, given by one of those who hold it: by rank, what it gives. `held`: by rank, its shard, if it has one.
/// Who are several share the work. `taker`, if any, gives itself what it holds. Nothing when some element is nowhere.
[[nodiscard]] std::optional<std::vector<std::vector<Piece>>> share_out(const Layout& layout, std::span<const std::optional<Cut>> held,
                                                                       std::optional<std::uint32_t> taker = {});
/// The same, of what `giver` gives alone: it asks for every taker, so that this must not take as long as the whole.
[[nodiscard]] std::vector<Piece> share_of(const Layout& layout, std::span<const std::optional<Cut>> held, std::uint32_t taker,
                                          std::uint32_t giver);

/// Of what `rank` holds, that which is its to count and to save, so that each element is some rank's and no other's.
/// Places are those in its shard.
[[nodiscard]] std::vector<Piece> primary_pieces(const Layout& layout, const ShardMap& shards, std::uint32_t rank);

}  // namespace elrun::inline v0
