#include "lib/comm/split.hpp"

#include <algorithm>

namespace elrun::inline v0 {

std::vector<Rank> members_of_split(std::span<const SplitWord> words, Rank me) {
  const SplitWord mine = words[me.value()];
  std::vector<Rank> members;
  if (mine.joins == 0) return members;
  for (std::uint32_t rank = 0; rank < words.size(); ++rank) {
    if (words[rank].joins != 0 && words[rank].color == mine.color) members.push_back(Rank{rank});
  }
  std::ranges::stable_sort(members, {}, [&](Rank rank) { return words[rank.value()].key; });
  return members;
}

}  // namespace elrun::inline v0
