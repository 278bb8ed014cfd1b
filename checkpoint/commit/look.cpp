#include "checkpoint/commit/look.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/storage/storage.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"

namespace elrun::inline v0 {
namespace {

Result<std::optional<FenceRecord>> highest_published(const CheckpointRoot& root, FenceNumber below, std::vector<std::string>& notes) {
  ELRUN_TRY_ASSIGN(const auto numbers, find_fences(root.tier()));
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    if (*number >= below) continue;
    const std::string name = name_in(fences_directory, fence_name(*number));
    const auto text = read_record(root.tier(), name, record_bytes_max);
    if (!text.ok() && text.failure().code == Code::not_found) continue;  // claimed by one who died before it could save
    if (!text.ok() && text.failure().code != Code::corrupt) return text.failure();
    auto record = text.ok() ? decode_fence(*text, root.where(name)) : Result<FenceRecord>{text.failure()};
    if (record.ok() && record->number == *number) return std::optional{std::move(*record)};
    if (!record.ok() && record.failure().code != Code::corrupt) return std::move(record).failure();
    // What was committed under this number and above stays on the timeline; only what it inherited is judged by the
    // record below.
    notes.push_back(fmt::format("fence {} is passed over: {}", *number, record.ok() ? "it holds another number" : record.failure().what));
  }
  return std::optional<FenceRecord>{};
}

/// A fence is published before the first save under it. So a COMMIT whose fence is not there, nor a later one, says that gens/ lost some
/// of its files, and with them what was acknowledged.
Result<void> look_for_fences(const CheckpointRoot& root, FenceNumber below, RootView& view) {
  ELRUN_TRY_ASSIGN(const auto published,
                   find_published_fences(root.tier()));  // after the checkpoints: another job may save meanwhile
  for (const FenceNumber number : published)
    if (number < below) view.newest_fence = std::max(view.newest_fence, number);
  const Found* newest = nullptr;
  for (const Found& f : view.found) {
    view.newest_fence = std::max(view.newest_fence, f.id.fence);
    if (f.committed && (newest == nullptr || std::tie(newest->id.fence, newest->id) < std::tie(f.id.fence, f.id))) newest = &f;
  }
  if (newest != nullptr && (published.empty() || published.back() < newest->id.fence))
    view.hollow = fmt::format("holds {}, but {}/{}, which was written before it, is gone (was {} removed, or not copied with the rest?)",
                              to_string(newest->id), fences_directory, fence_name(newest->id.fence), fences_directory);
  return {};
}

/// The first line of its mark; empty where that cannot be read.
std::string what_was_seen(const CheckpointRoot& root, const CheckpointId& id) {
  constexpr Bytes mark_bytes_max{65536};
  const auto mark = root.tier().get_all(name_in(checkpoint_directory(id), quarantine_file), mark_bytes_max);
  if (!mark.ok()) return {};
  const std::string_view text = as_text(*mark);
  constexpr std::size_t shown_max = 1024;
  return printable(text.substr(0, std::min(text.find('\n'), shown_max)));
}

/// The shards, by all ranks. What one of them finds bad is looked into here: it decides, for a rank that sees another storage than the leader must
/// not condemn what is whole.
Result<void> ask_for_shards(const CheckpointRoot& root, const CheckpointId& id, const ReadManifest& read, const AskRanks& ask) {
  const auto files = static_cast<std::uint32_t>(read.manifest.files.size());
  ELRUN_TRY_ASSIGN(const auto findings, ask({id, read.crc}));
  for (const ShardFindings& found : findings) {
    if (found.is_good()) continue;
    std::vector<std::uint32_t> doubtful =
        found.is_blind ? share_of_checks(files, found.rank, static_cast<std::uint32_t>(findings.size())) : found.bad;
    std::erase_if(doubtful, [&](std::uint32_t file) { return file >= files; });
    ELRUN_TRY(verify_shards(root.tier(), checkpoint_directory(id), read.manifest, doubtful, root.at_once()));
    if (found.rank == root.saver().rank.value()) continue;  // the leader's own bad moment
    root.log().warning(fmt::format("rank {} cannot read all of checkpoint {}, but the leader can ({}): do all nodes see the same {}?",
                                   found.rank, to_string(id), found.why, root.where()));
  }
  return {};
}

/// Reads the chain from COMMIT to the shards' block tables. A failure is what neither damage nor a bad moment of the storage explains.
Result<LookedInto> look_into(const CheckpointRoot& root, const CheckpointId& id, const std::string& root_identity, const AskRanks& ask) {
  auto names = root.tier().list(checkpoint_directory(id));
  if (!names.ok() && may_be_a_moment(names.failure().code)) names = root.tier().list(checkpoint_directory(id));
  if (!names.ok() && names.failure().code == Code::io) return LookedInto{id, LookedInto::As::unreadable, names.failure().what};
  if (!names.ok() && names.failure().code != Code::not_found) return std::move(names).failure();
  const auto verify = [&]() -> Result<ReadManifest> {
    if (!ask) return verify_checkpoint(root.tier(), checkpoint_directory(id), id, root_identity, root.at_once());
    ELRUN_TRY_ASSIGN(ReadManifest read, verify_manifest(root.tier(), checkpoint_directory(id), id, root_identity));
    ELRUN_TRY(ask_for_shards(root, id, read, ask));
    return read;
  };
  auto verified = verify();
  if (!verified.ok() && may_be_a_moment(verified.failure().code)) verified = verify();
  if (verified.ok()) return LookedInto{.id = id, .manifest_crc = verified->crc};
  const Failure& why = verified.failure();
  if (why.code == Code::not_found) {  // removed by its owner while we looked, or damaged?
    names = root.tier().list(checkpoint_directory(id));
    if (!names.ok() || std::find(names->begin(), names->end(), commit_file) == names->end()) return LookedInto{id, LookedInto::As::removed};
  }
  if (why.code == Code::corrupt || why.code == Code::not_found) return LookedInto{id, LookedInto::As::damaged, why.what};
  if (why.code == Code::io) return LookedInto{id, LookedInto::As::unreadable, why.what};
  return why;
}

}  // namespace

Result<RootView> look(const CheckpointRoot& root, FenceNumber below, std::span<const Witness> outside, std::vector<std::string>& notes) {
  Tier& tier = root.tier();
  RootView view{.where = root.where(), .witnesses = {outside.begin(), outside.end()}};
  // First what was promised, then what is there: another job may save meanwhile.
  ELRUN_TRY_ASSIGN(const auto acknowledged, find_acknowledged(tier));
  ELRUN_TRY_ASSIGN(view.highest, highest_published(root, below, notes));
  ELRUN_TRY_ASSIGN(view.found, find_checkpoints(tier));
  for (Found& f : view.found)
    if (f.quarantined) f.damage = what_was_seen(root, f.id);
  const std::vector<Found> line = timeline(view.found, view.highest);
  const auto run = root.read_run();
  if (!run.ok() && run.failure().code != Code::corrupt) return run.failure();
  if (run.ok() && *run) view.root = (*run)->root;
  for (auto f = line.rbegin(); f != line.rend() && view.root.empty(); ++f)  // until RUN.json is written again
    if (const auto commit = read_commit(tier, checkpoint_directory(f->id)); commit.ok()) view.root = commit->root;

  for (const CheckpointId& id : acknowledged) {
    const std::string name = name_in(fences_directory, acknowledgement_name(id)), where = root.where(name);
    Witness w{.id = id, .says = fmt::format("{} says so", where)};  // by its name; the content is for people
    if (id == acknowledged.back())
      if (const auto text = tier.get_all(name, acknowledgement_bytes_max); text.ok())
        if (const auto record = decode_acknowledgement(*text, where); record.ok() && record->id == id) w = witness(*record, where, false);
    view.witnesses.push_back(std::move(w));
  }
  if (view.highest && !view.highest->inherits.empty()) {
    const CheckpointId id = view.highest->inherits.back();
    view.witnesses.push_back({.id = id,
                              .says = fmt::format("fence {} of {} says that {} was there", view.highest->number,
                                                  to_string(view.highest->author), to_string(id))});
  }
  ELRUN_TRY(look_for_fences(root, below, view));
  if (!line.empty()) return view;
  for (const Found& f : view.found) {  // roots of elrun 0.1.0 have no acknowledgements, but a manifest names the checkpoint before it
    const auto left = read_manifest(tier, checkpoint_directory(f.id));
    if (left.ok() && left->manifest.parent)
      view.witnesses.push_back(
          {.id = *left->manifest.parent,
           .says = fmt::format("{} says that {} was committed before it", root.where(name_in(checkpoint_directory(f.id), manifest_file)),
                               to_string(*left->manifest.parent))});
  }
  if (run.ok() && !*run) {
    if (const std::string mount = view.found.empty() && !view.highest ? tier.missing_mount() : std::string{}; !mount.empty())
      view.hollow = fmt::format("is empty, and {}, which /etc/fstab has, is not mounted", mount);
    return view;
  }
  ELRUN_TRY_ASSIGN(const auto names, tier.list(""));
  ELRUN_TRY_ASSIGN(const auto fences, find_fences(tier));
  const bool has_directory = std::find(names.begin(), names.end(), checkpoints_directory) != names.end();
  if (fences.empty() || fences.front() >= below || !has_directory)
    view.hollow = fmt::format("has a {}, which its first save made, but {} is gone", run_file,
                              has_directory ? fences_directory : checkpoints_directory);
  return view;
}

Result<Resumption> decided(const CheckpointRoot& root, Findings findings, const AskRanks& ask) {
  for (;;) {
    auto next = decide(findings);
    if (auto* no = std::get_if<Failure>(&next)) return std::move(*no);
    if (auto* go = std::get_if<Resumption>(&next)) return std::move(*go);
    ELRUN_TRY_ASSIGN(auto looked, root.of_reading(look_into(root, std::get<LookInto>(next).id, findings.view.root, ask)));
    findings.looked.push_back(std::move(looked));
  }
}

}  // namespace elrun::inline v0
