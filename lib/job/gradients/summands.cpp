#include "lib/job/gradients/summands.hpp"

#include <algorithm>

namespace elrun::inline v0 {
namespace {

/// Each gradient is added to the sum of those before it.
FoldSchedule running_sum(std::size_t slots, std::uint32_t leaf) {
  FoldSchedule out;
  for (std::size_t i = 0; i < slots; ++i) {
    out.buffer.push_back(i == 0 ? 0 : 1);
    out.merges.push_back(i == 0 ? 0 : 1);
  }
  out.nodes = {{leaf, 1}};
  out.depth = slots == 1 ? 1 : 2;
  return out;
}

}  // namespace

Summands summands(const std::vector<std::vector<std::uint32_t>>& slots_by_rank, Reduce reduce) {
  Summands out;
  for (const auto& slots : slots_by_rank) out.count += reduce == Reduce::exact ? slots.size() : std::min<std::size_t>(slots.size(), 1);
  std::uint32_t leaf = 0;
  for (const auto& slots : slots_by_rank) {
    if (reduce == Reduce::exact) {
      out.by_rank.push_back(slots);
      out.schedules.push_back(fold_schedule(slots, out.count));
    } else if (slots.empty()) {
      out.by_rank.emplace_back();
      out.schedules.emplace_back();
    } else {
      out.by_rank.push_back({leaf});
      out.schedules.push_back(running_sum(slots.size(), leaf++));
    }
  }
  return out;
}

}  // namespace elrun::inline v0
