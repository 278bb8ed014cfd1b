#include "lib/comm/split.hpp"

#include <algorithm>

namespace elrun::inline v0 {

std::vector<Rank> members_of_split(std::span<const SplitRequest> requests, Rank me) {
  const SplitRequest mine = requests[me.value()];
  std::vector<Rank> members;
  if (mine.joins == 0) return members;
  for (std::uint32_t rank = 0; rank < requests.size(); ++rank) {
    if (requests[rank].joins != 0 && requests[rank].color == mine.color) members.push_back(Rank{rank});
  }
  std::ranges::stable_sort(members, {}, [&](Rank rank) { return requests[rank.value()].key; });
  return members;
}

}  // namespace elrun::inline v0
