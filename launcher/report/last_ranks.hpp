#pragma once
/// \file LastRanks: which ranks the others waited for at the ends of steps, how often, and for how long. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <elrun/units.hpp>

namespace elrun::inline v0::launcher {

struct LastRank {
  std::uint32_t rank = 0;   ///< In the step's own generation.
  std::uint64_t steps = 0;  ///< To whose end it came last;
  Duration behind{};        ///< in all of them, so long after the rank before it.
  friend bool operator==(const LastRank&, const LastRank&) = default;
};

class LastRanks {
 public:
  void note(std::uint32_t rank, Duration behind) {
    LastRank& last = by_rank_.try_emplace(rank, LastRank{.rank = rank}).first->second;
    ++last.steps;
    last.behind += behind;
    ++steps_;
  }
  /// Steps of which it is known who came last.
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  [[nodiscard]] LastRank of(std::uint32_t rank) const {
    const auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? LastRank{.rank = rank} : found->second;
  }
  /// At most `count`, who was waited for longest first.
  [[nodiscard]] std::vector<LastRank> longest(std::size_t count) const {
    std::vector<LastRank> all;
    all.reserve(by_rank_.size());
    for (const auto& [rank, last] : by_rank_) all.push_back(last);
    std::stable_sort(all.begin(), all.end(), [](const LastRank& a, const LastRank& b) { return a.behind > b.behind; });
    all.resize(std::min(all.size(), count));
    return all;
  }

 private:
  std::map<std::uint32_t, LastRank> by_rank_;
  std::uint64_t steps_ = 0;
};

}  // namespace elrun::inline v0::launcher
