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

}  // namespace elrun::inline v0
