#include "lib/job/state/delivery.hpp"

namespace elrun::inline v0 {

Delivery deliver(std::uint32_t rank, const std::vector<std::vector<Piece>>& has, PiecesIn from,
                 const std::vector<std::vector<Piece>>& wants, PiecesIn to) {
  Delivery out{std::vector<SendList>(has.size()), std::vector<ReceiveList>(has.size())};
  for (std::uint32_t r = 0; r < has.size(); ++r) {
    if (r == rank) continue;
    for (const Common& both : common(has[rank], wants[r])) out.sends[r].push_back(std::as_bytes(part(from, both.a)));
    for (const Common& both : common(has[r], wants[rank])) out.receives[r].push_back(std::as_writable_bytes(part(to, both.b)));
  }
  return out;
}

Delivery deliver_sums(const Layout& layout, const ShardMap& shards, std::uint32_t rank, PiecesIn from, PiecesIn to) {
  std::vector<std::vector<Piece>> has, wants;
  for (const Cut& cut : shards.folds) has.push_back(pieces(layout, cut));
  for (const Cut& cut : shards.cuts) wants.push_back(pieces(layout, cut));
  return deliver(rank, has, from, wants, to);
}

Handover hand_over(const Layout& layout, std::span<const std::optional<Cut>> held, std::span<const Cut> wanted, std::uint32_t rank) {
  // Both sides cut what is given at the same borders: those of the giver's shard, then those of the taker's.
  const auto given = [&](std::uint32_t giver, std::uint32_t taker, const std::vector<Piece>& pieces_given) {
    std::vector<Piece> had;
    for (const Common& both : common(held[giver] ? pieces(layout, *held[giver]) : std::vector<Piece>{}, pieces_given))
      had.push_back(both.a);
    return common(had, pieces(layout, wanted[taker]));
  };
  Handover out{std::vector<std::vector<Common>>(held.size()), std::vector<std::vector<Common>>(held.size())};
  const auto to_me = *share_out(layout, held, rank);
  for (std::uint32_t other = 0; other < held.size(); ++other) {
    out.gives[other] = given(rank, other, share_of(layout, held, other, rank));
    out.gets[other] = given(other, rank, to_me[other]);
  }
  return out;
}

}  // namespace elrun::inline v0
