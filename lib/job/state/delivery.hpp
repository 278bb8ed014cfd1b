#pragma once
/// \file Delivery: the lists of one exchange that brings pieces of a flat space to the ranks that want them. Core: it moves nothing.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/job/declare/layout.hpp"
#include "lib/job/state/shard_map.hpp"

namespace elrun::inline v0 {

/// One exchange, by rank.
struct Delivery {
  std::vector<SendList> sends;
  std::vector<ReceiveList> receives;
};
enum class Space : std::uint8_t { parameters, gradients, shard };  ///< The last: of a rank's own shard alone.
[[nodiscard]] constexpr std::uint64_t begin_in(Space space, const Piece& p) {
  return space == Space::parameters ? p.parameter : space == Space::gradients ? p.gradient : p.place;
}
/// Where pieces lie.
struct PiecesIn {
  std::span<float> memory;
  Space space = Space::shard;
};
[[nodiscard]] inline std::span<float> part(PiecesIn in, const Piece& p) { return in.memory.subspan(begin_in(in.space, p), p.size()); }
/// Every rank gets of what it wants whatever others have. What it has itself stays where it is.
[[nodiscard]] Delivery deliver(std::uint32_t rank, const std::vector<std::vector<Piece>>& has, PiecesIn from,
                               const std::vector<std::vector<Piece>>& wants, PiecesIn to);
/// The sums that each rank folded, to all who hold them.
[[nodiscard]] Delivery deliver_sums(const Layout& layout, const ShardMap& shards, std::uint32_t rank, PiecesIn from, PiecesIn to);

/// Pieces that ranks give each other so that each gets a shard, whatever they hold. By rank; of a rank itself: what it keeps.
struct Handover {
  std::vector<std::vector<Common>> gives;  ///< As it lies in this rank's shard, and in the other's.
  std::vector<std::vector<Common>> gets;   ///< As it lies in the other's shard, and in this rank's.
};
/// `held`: by rank, the shard that it has, if any; together they have all. `wanted`: by rank, the shard that it gets. Who has an element itself gets it from nobody else.
[[nodiscard]] Handover hand_over(const Layout& layout, std::span<const std::optional<Cut>> held, std::span<const Cut> wanted,
                                 std::uint32_t rank);

}  // namespace elrun::inline v0
