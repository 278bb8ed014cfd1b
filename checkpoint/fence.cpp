#include "checkpoint/fence.hpp"

#include <algorithm>

namespace elrun::inline v0 {

std::vector<Found> timeline(const std::vector<Found>& found, const std::optional<FenceRecord>& highest) {
  std::vector<Found> line;
  for (const Found& f : found) {
    const bool mine = !highest || f.id.fence >= highest->number;
    const bool inherited = highest && std::binary_search(highest->inherits.begin(), highest->inherits.end(), f.id);
    if (f.committed && (mine || inherited)) line.push_back(f);
  }
  std::sort(line.begin(), line.end(), [](const Found& a, const Found& b) { return a.id < b.id; });
  return line;
}

Retention retention(const std::vector<Found>& found, const std::vector<CheckpointId>& line, FenceNumber mine,
                    std::uint32_t keep) {
  keep = std::max(keep, 2u);
  std::vector<CheckpointId> good, beside;
  Retention result;
  for (const Found& f : found) {
    if (f.quarantined || f.id.fence > mine) continue;  // kept for the person who looks into it; not ours to judge
    const bool on_line = std::find(line.begin(), line.end(), f.id) != line.end();
    if (!f.committed)
      result.sweep.push_back(f.id);
    else if (on_line)
      good.push_back(f.id);
    else if (f.id.fence < mine)
      beside.push_back(f.id);
  }
  std::sort(good.begin(), good.end());
  if (good.size() >= keep) {
    result.uncommit.assign(good.begin(), good.end() - keep);
    result.uncommit.insert(result.uncommit.end(), beside.begin(), beside.end());
    std::sort(result.uncommit.begin(), result.uncommit.end());
  }
  return result;
}

}  // namespace elrun::inline v0
