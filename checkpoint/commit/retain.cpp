// Checkpointer: what is removed after a save. fence.hpp decides which checkpoints.

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/storage/storage.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t fences_kept = 32;         // the newest, whoever needs them: a damaged one is judged by those below it
constexpr std::size_t fences_removed_max = 64;  // by one retain
constexpr std::size_t removed_max = 4;          // the same of checkpoints: others wait for this rank's next step

/// What it held; nothing: it stays.
Result<std::optional<Bytes>> remove_committed(const CheckpointRoot& root, const CheckpointId& id, const std::string& identity) {
  const std::string directory = checkpoint_directory(id);
  const auto commit = read_commit(root.tier(), directory);
  if (!commit.ok()) return std::optional<Bytes>{};              // damaged: kept for the person who looks into it
  if (commit->root != identity) return std::optional<Bytes>{};  // not ours, however it came here
  // The mirror of a commit: first it is promised to nobody, then it stops to exist, each durably; then its bytes go.
  ELRUN_TRY(root.tier().remove(name_in(fences_directory, acknowledgement_name(id))));
  ELRUN_TRY(root.tier().remove(name_in(directory, commit_file)));
  ELRUN_TRY(root.tier().throw_away(directory));
  return std::optional{Bytes{commit->total_bytes}};
}

/// A directory without a COMMIT. False: it stays, for it has one now, or belongs to another root.
Result<bool> sweep(const CheckpointRoot& root, const CheckpointId& id, const std::string& identity) {
  const std::string directory = checkpoint_directory(id);
  const auto now_there = root.tier().list(directory);  // the looks and removals before this one take their time
  if (now_there.ok() && std::find(now_there->begin(), now_there->end(), commit_file) != now_there->end()) return false;
  const auto left = read_manifest(root.tier(), directory);
  if (left.ok() && left->manifest.root != identity) return false;
  // It is gone from the list. Whether it is gone for good nobody knows who only looks: its removal may have failed before it was synced.
  ELRUN_TRY(root.tier().remove(name_in(directory, commit_file)));
  ELRUN_TRY(root.tier().remove_all(directory));
  return true;
}

/// A start reads the highest fence, and those below it only where that one is damaged. What a checkpoint or an acknowledgement names stays, too.
Result<void> remove_old_fences(const CheckpointRoot& root, FenceNumber mine, const std::vector<Found>& found,
                               const std::vector<CheckpointId>& promised) {
  ELRUN_TRY_ASSIGN(std::vector<FenceNumber> numbers, find_fences(root.tier()));
  if (numbers.size() <= fences_kept) return {};
  numbers.resize(numbers.size() - fences_kept);
  std::set<FenceNumber> needed;
  for (const Found& f : found) needed.insert(f.id.fence);
  for (const CheckpointId& id : promised) needed.insert(id.fence);
  std::size_t removed = 0;
  for (const FenceNumber number : numbers) {
    if (number >= mine || needed.contains(number)) continue;
    for (const std::string& name : {fence_name(number), claim_name(number)})
      ELRUN_TRY(root.tier().discard(name_in(fences_directory, name)));
    if (++removed == fences_removed_max) break;
  }
  return {};
}

/// What there is to choose from, under a fence that is the newest.
struct Holdings {
  std::string root;  ///< The identity.
  std::vector<Found> found;
  std::vector<CheckpointId> promised;  ///< Acknowledged, or given up.
};
/// None: nothing was ever saved here.
Result<std::optional<Holdings>> holdings(const CheckpointRoot& root, const OwnFence& fence) {
  ELRUN_TRY(fence.check_newest(root));
  ELRUN_TRY_ASSIGN(auto run, root.read_run());
  if (!run) return std::optional<Holdings>{};
  Holdings all{.root = std::move(run->root)};
  ELRUN_TRY_ASSIGN(all.found, find_checkpoints(root.tier()));
  ELRUN_TRY_ASSIGN(all.promised, find_acknowledged(root.tier()));
  for (const GivenUp& g : fence.given_up()) all.promised.push_back(g.id);
  return std::optional{std::move(all)};
}

}  // namespace

/// A damaged checkpoint that is kept stands for no whole one that goes. A start with state has not looked, so each that is kept is looked into,
/// once, before the first one goes.
Result<Retention> Checkpointer::what_goes(std::vector<Found>& found, const std::vector<CheckpointId>& promised,
                                          const std::string& root_identity, std::uint32_t keep) {
  for (;;) {
    Retention gone = retention(found, timeline_, promised, fence_.number(), keep);
    const auto doubtful = std::find_if(gone.keep.begin(), gone.keep.end(),
                                       [&](const CheckpointId& id) { return std::find(whole_.begin(), whole_.end(), id) == whole_.end(); });
    if (gone.uncommit.empty() || doubtful == gone.keep.end()) return gone;
    const auto verify = [&] {
      return verify_checkpoint(root_.tier(), checkpoint_directory(*doubtful), *doubtful, root_identity, root_.at_once());
    };
    auto verified = verify();
    if (!verified.ok() && may_be_a_moment(verified.failure().code)) verified = verify();
    if (verified.ok()) {
      whole_.push_back(*doubtful);
      continue;
    }
    const Failure& why = verified.failure();
    const bool is_damaged = why.code == Code::corrupt || why.code == Code::not_found;
    if (!is_damaged && !may_be_a_moment(why.code)) return why;  // one bad file stops no retention for ever
    root_.log().warning(fmt::format("checkpoint {} cannot be used, one more before it is kept: {}", to_string(*doubtful), why.what));
    if (is_damaged) (void)root_.quarantine(*doubtful, why);
    std::find_if(found.begin(), found.end(), [&](const Found& f) { return f.id == *doubtful; })->quarantined = true;
  }
}

/// Best effort: the save says whether there is space now.
void Checkpointer::make_room(const commit::AskSpace& before) {
  const auto is_short = [&] {
    const auto left = root_.tier().space_left();
    return left.ok() && *left < before.needs;
  };
  const auto told = [&](const Result<std::size_t>& removed, const char* what) {
    if (!removed.ok()) root_.log().warning(fmt::format("{} could not be removed: {}", what, message(root_.explained(removed.failure()))));
    else if (*removed > 0)
      root_.log().info(fmt::format("there was too little space for a checkpoint of step {}: {} removed ({})", before.step, what, *removed));
  };
  told(remove_leftovers(before), "what unfinished saves left is");
  if (before.room.keep > 0 && is_short()) told(remove_beyond(before), "old checkpoints beyond those that are kept are");
}

Result<std::size_t> Checkpointer::remove_leftovers(const commit::AskSpace& before) {
  ELRUN_TRY_ASSIGN(auto here, holdings(root_, fence_));
  if (!here) return std::size_t{0};
  // A server that did not answer in time may still link a COMMIT, and nothing newer is committed.
  here->promised.insert(here->promised.end(), doubtful_.begin(), doubtful_.end());
  Result<void> first = root_.tier().empty_trash();  // what one of them keeps from going is no reason for the others to stay
  std::size_t removed = 0;
  for (const CheckpointId& id : leftovers(here->found, here->promised, fence_.number(), before.step, before.room.earlier)) {
    // A name is used once, also where what had it is gone.
    if (id.fence == fence_.number() && id.step == before.step) tried_ = std::max(tried_.value_or(id), id);
    const auto swept = sweep(root_, id, here->root);
    if (swept.ok()) removed += *swept ? 1 : 0;
    else if (first.ok()) first = swept.failure();
  }
  ELRUN_TRY(first);
  return removed;
}

/// Where fewer are kept than before: no more than the space that is needed, and as many stay as after a save. What is free may say only later that something went, so what went
/// is counted, too.
Result<std::size_t> Checkpointer::remove_beyond(const commit::AskSpace& before) {
  ELRUN_TRY_ASSIGN(auto here, holdings(root_, fence_));
  if (!here) return std::size_t{0};
  ELRUN_TRY_ASSIGN(const Retention gone, root_.of_reading(what_goes(here->found, here->promised, here->root, before.room.keep)));
  ELRUN_TRY_ASSIGN(const Bytes at_first, root_.tier().space_left());
  std::size_t removed = 0;
  std::uint64_t freed = 0;
  for (const CheckpointId& id : gone.uncommit) {
    ELRUN_TRY_ASSIGN(const Bytes left, root_.tier().space_left());
    if (std::max(left.value(), at_first.value() + freed) >= before.needs.value() || removed == removed_max) break;
    ELRUN_TRY(fence_.check_newest(root_));  // since the last look a later job may have gone on from this one
    ELRUN_TRY_ASSIGN(const auto held, remove_committed(root_, id, here->root));
    if (held) freed += held->value(), ++removed;
  }
  return removed;
}

Result<void> Checkpointer::retain(std::uint32_t keep) {
  Result<void> first;
  const auto keep_first = [&](Result<void> result) {
    if (!result.ok() && first.ok()) first = root_.explained(std::move(result).failure());
  };
  auto cleaned = [&]() -> Result<void> {
    ELRUN_TRY_ASSIGN(auto here, holdings(root_, fence_));
    if (!here) return {};
    keep_first(remove_old_fences(root_, fence_.number(), here->found, here->promised));
    ELRUN_TRY_ASSIGN(const Retention gone, root_.of_reading(what_goes(here->found, here->promised, here->root, keep)));
    std::size_t tried = 0;
    for (const CheckpointId& id : gone.uncommit) {
      if (tried == removed_max) break;
      ELRUN_TRY(fence_.check_newest(root_));  // since the last look a later job may have gone on from this one
      auto removed = remove_committed(root_, id, here->root);
      if (!removed.ok() || *removed) ++tried;  // what stays keeps no other one here
      if (!removed.ok()) keep_first(std::move(removed).failure());
    }
    for (const CheckpointId& id : gone.sweep)
      if (auto swept = sweep(root_, id, here->root); !swept.ok()) keep_first(std::move(swept).failure());
    keep_first(root_.tier().empty_trash());
    return {};
  }();
  keep_first(std::move(cleaned));
  return first;
}

}  // namespace elrun::inline v0
