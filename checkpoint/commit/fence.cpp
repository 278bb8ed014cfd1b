#include "checkpoint/commit/fence.hpp"

#include <algorithm>

namespace elrun::inline v0 {

std::vector<Found> timeline(const std::vector<Found>& found, const std::optional<FenceRecord>& highest) {
  std::vector<Found> line;
  for (const Found& f : found) {
    const bool mine = !highest || f.id.fence >= highest->number;
    const bool inherited = highest && std::binary_search(highest->inherits.begin(), highest->inherits.end(), f.id);
    if ((f.committed || !f.unreadable.empty()) && (mine || inherited)) line.push_back(f);
  }
  std::sort(line.begin(), line.end(), [](const Found& a, const Found& b) { return a.id < b.id; });
  return line;
}

Retention retention(const std::vector<Found>& found, const std::vector<CheckpointId>& line, const std::vector<CheckpointId>& promised,
                    FenceNumber mine, std::uint32_t keep) {
  keep = std::max(keep, 2u);
  const auto among = [](const std::vector<CheckpointId>& ids, const CheckpointId& id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  Retention result;
  std::vector<CheckpointId>& good = result.keep;
  for (const Found& f : found) {
    if (f.quarantined || !f.unreadable.empty() || f.id.fence > mine) continue;
    if (f.committed && among(line, f.id)) good.push_back(f.id);
    else if (!f.committed && !among(promised, f.id)) result.sweep.push_back(f.id);
  }
  std::sort(good.begin(), good.end());
  // A save that failed after its COMMIT was linked is tried again: two attempts have the same state, and count once.
  for (std::size_t i = 0; i + 1 < good.size();) {
    if (good[i].step != good[i + 1].step || good[i].fence != good[i + 1].fence) {
      ++i;
      continue;
    }
    result.uncommit.push_back(good[i]);
    good.erase(good.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (good.size() > keep) {
    result.uncommit.insert(result.uncommit.end(), good.begin(), good.end() - keep);
    good.erase(good.begin(), good.end() - keep);
  }
  return result;
}

}  // namespace elrun::inline v0
