#include "checkpoint/commit/fence.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

std::vector<Found> timeline(const std::vector<Found>& found, const std::optional<FenceRecord>& highest) {
  std::vector<Found> line;
  for (const Found& f : found) {
    const bool mine = !highest || f.id.fence >= highest->number || ELRUN_PLANTED(zombies_accepted);
    const bool inherited = highest && std::binary_search(highest->inherits.begin(), highest->inherits.end(), f.id);
    if ((f.committed || !f.unreadable.empty()) && (mine || inherited)) line.push_back(f);
  }
  std::sort(line.begin(), line.end(), [](const Found& a, const Found& b) { return a.id < b.id; });
  return line;
}

Failure superseded(const FencesSeen& seen, FenceNumber mine, const Author& author, const std::string& root) {
  const FenceNumber newest = seen.numbers.empty() ? 0 : seen.numbers.back();
  const Author owner = seen.newest.value_or(Author{.run_id = "unknown"});  // refused all the same
  // Nothing, unless it is its own later generation.
  const bool own = owner.generation.lineage == author.generation.lineage && owner.run_id == author.run_id;
  return {.code = own ? Code::generation_over : Code::refused,
          .remedy = own ? Remedy::rejoin : Remedy::fix_config,
          .what = fmt::format("checkpoint root {} was taken over: fence {} belongs to {}; this job has fence {} and is {}. {}", root,
                              newest, to_string(owner), mine, to_string(author),
                              own ? "A later generation of this job saves from here on"
                                  : "Only one job may save to a root: stop one of them, or give them different directories"),
          .generation = author.generation};
}

Result<void> may_claim(FenceNumber newest, const std::optional<Author>& owner, const Author& author, const std::string& root) {
  if (!owner || owner->run_id != author.run_id || owner->generation.lineage != author.generation.lineage ||
      owner->generation.number <= author.generation.number || ELRUN_PLANTED(older_generation_claims))
    return {};
  return Failure{.code = Code::generation_over,
                 .remedy = Remedy::rejoin,
                 .what = fmt::format("checkpoint root {} is of a later generation of this job: fence {} belongs to {}, this is {}", root,
                                     newest, to_string(*owner), to_string(author)),
                 .generation = author.generation};
}

Result<void> may_save(const FencesSeen& seen, FenceNumber mine, const Author& author, const std::string& root) {
  if (seen.numbers.empty() || seen.numbers.back() < mine)
    return Failure{Code::not_found, Remedy::fix_config,
                   fmt::format("fence {} is gone from {}: was the checkpoint root removed while the job runs?", mine, root)};
  if (seen.numbers.back() == mine || ELRUN_PLANTED(own_fence_only)) return {};
  return superseded(seen, mine, author, root);
}

std::vector<CheckpointId> leftovers(const std::vector<Found>& found, const std::vector<CheckpointId>& promised, FenceNumber mine,
                                    std::uint64_t step, EarlierSaves earlier) {
  std::vector<CheckpointId> out;
  for (const Found& f : found) {
    if (f.committed || f.quarantined || !f.unreadable.empty()) continue;
    const bool own_is_over =
        (f.id.step < step && earlier != EarlierSaves::may_go_on) || (f.id.step == step && earlier == EarlierSaves::all_over);
    const bool is_over = f.id.fence < mine || (f.id.fence == mine && own_is_over);
    if (is_over && std::find(promised.begin(), promised.end(), f.id) == promised.end()) out.push_back(f.id);
  }
  return out;
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
    // Under our own fence a later save than the newest that was committed may be under way, in another process.
    const bool is_left = f.id.fence < mine || (!line.empty() && f.id.step <= line.back().step);
    if (!f.committed && is_left && (!among(promised, f.id) || ELRUN_PLANTED(sweep_of_the_known))) result.sweep.push_back(f.id);
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
