#include "checkpoint/commit/save_actions.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/storage/in_parallel.hpp"
#include "checkpoint/storage/shard_file.hpp"
#include "checkpoint/storage/storage.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

using namespace commit;

namespace {

/// One overload for each action.
struct Act {
  const SaveContext& on;
  const SaveTicket& ticket;

  [[nodiscard]] Tier& tier() const { return on.root.tier(); }
  [[nodiscard]] std::string directory() const { return checkpoint_directory(ticket.id); }

  Result<FencesSeen> operator()(const LookAtFences&) const { return on.fence.look(on.root); }
  Result<SpaceLeft> operator()(const AskSpace&) const;
  Result<RunKnown> operator()(const ReadRun&) const;
  Result<AttemptsFound> operator()(const ListAttempts&) const;
  Result<Done> operator()(const MakeDirectory&) const;
  Result<ManifestWritten> operator()(const WriteManifest& what) const;
  Result<Done> operator()(const AskOwner&) const;
  Result<Done> operator()(const PublishCommit& what) const;
  Result<Done> operator()(const Acknowledge& what) const;
  Result<Done> operator()(const Abandon&) const { return remove_uncommitted(on.root, ticket), Done{}; }
  [[nodiscard]] Result<PartRecord> part_of(const PartVote& vote) const;
};

Result<SpaceLeft> Act::operator()(const AskSpace&) const {
  ELRUN_TRY_ASSIGN(const Bytes left, tier().space_left());
  return SpaceLeft{left};
}

Result<RunKnown> Act::operator()(const ReadRun&) const {
  ELRUN_TRY_ASSIGN(RunRecord run, on.root.read_or_make_run(on.line, on.fence.number()));
  return RunKnown{std::move(run.root)};
}

/// By their names, for what is no directory takes a name, too.
Result<AttemptsFound> Act::operator()(const ListAttempts&) const {
  ELRUN_TRY_ASSIGN(const auto names, tier().list(checkpoints_directory));
  AttemptsFound found;
  for (const std::string& name : names)
    if (const auto taken = parse_checkpoint_id(name)) found.taken.push_back(*taken);
  return found;
}

Result<Done> Act::operator()(const MakeDirectory&) const {
  ELRUN_TRY(tier().make_directory(directory()));
  return Done{};
}

/// Checked against its vote, down to the shard's block table, as this process sees it: a rank that votes yes knows only that its own node has its files.
Result<PartRecord> Act::part_of(const PartVote& vote) const {
  const std::string name = name_in(directory(), part_name(vote.rank, on.root.saver().world.value())), where = on.root.where(name);
  const auto told = [&](Failure why) {
    why.rank = Rank{vote.rank};
    if (why.code == Code::not_found || why.code == Code::corrupt)
      why.what = fmt::format("{} is not here as rank {} wrote it ({}): do all nodes see the same {}?", where, vote.rank, why.what,
                             on.root.where());
    return why;
  };
  const auto text = on.root.of_reading(tier().get_all(name, record_bytes_max));
  if (!text.ok()) return told(text.failure());
  if (text->size() != vote.part_bytes || crc32c(*text) != vote.part_crc)
    return told({Code::corrupt, Remedy::fix_config, "it has another length or checksum than its vote"});
  ELRUN_TRY_ASSIGN(PartRecord part, decode_part(*text, where));
  if (const auto shard = on.root.of_reading(look_into_shard(tier(), directory(), part.file));
      !shard.ok() && !ELRUN_PLANTED(failed_look_counts))
    return told(shard.failure());
  return part;
}

Result<ManifestWritten> Act::operator()(const WriteManifest& what) const {
  std::vector<PartRecord> parts(what.votes.size());
  ELRUN_TRY(all_in_parallel(parts.size(), on.root.at_once(), [&](std::size_t i) -> Result<void> {
    ELRUN_TRY_ASSIGN(parts[i], part_of(what.votes[i]));
    return {};
  }));
  ManifestWritten written;
  for (const PartRecord& part : parts) written.total_bytes += part.file.bytes;
  Manifest head{.format = checkpoint_format,
                .id = ticket.id,
                .root = ticket.root,
                .author = on.root.author(),
                .parent = {},
                .world = on.root.saver().world.value(),
                .plan = on.root.saver().plan,
                .model = on.root.saver().model,
                .files = {},
                .layout = {},
                .aux = {}};
  if (!on.line.empty()) head.parent = on.line.back();
  ELRUN_TRY_ASSIGN(const Manifest manifest, merge(std::move(head), std::move(parts)));
  const std::string text = encode(manifest);
  ELRUN_TRY(check_manifest_size(run_count(manifest.layout), text.size()));
  ELRUN_TRY(tier().put(name_in(directory(), manifest_file), as_bytes(text)));
  written.bytes = text.size(), written.crc = crc32c(as_bytes(text)), written.sha256 = to_hex(sha256(as_bytes(text)));
  written.files = manifest.files.size();
  return written;
}

Result<Done> Act::operator()(const AskOwner&) const {
  ELRUN_ASSERT(!"a question to the job is not the storage's to answer");
  return Done{};
}

Result<Done> Act::operator()(const PublishCommit& what) const {
  const ManifestWritten& m = what.manifest;
  const CommitRecord record{ticket.id, ticket.root, on.root.author(), m.bytes, m.crc, m.sha256, m.files, m.total_bytes};
  ELRUN_TRY(tier().publish(name_in(directory(), commit_file), as_bytes(encode(record))));
  return Done{};
}

Result<Done> Act::operator()(const Acknowledge& what) const {
  ELRUN_TRY(on.fence.acknowledge(on.root, ticket));
  on.root.log().info(
      fmt::format("checkpoint {} committed: {} bytes in {} files", to_string(ticket.id), what.manifest.total_bytes, what.manifest.files));
  return Done{};
}

}  // namespace

CommitAnswer perform(const SaveContext& scene, const CommitAction& action) {
  return std::visit(
      [&](const auto& what) -> CommitAnswer {
        auto done = Act{scene, action.ticket}(what);
        if (!done.ok()) return std::move(done).failure();
        return std::move(done).value();
      },
      action.what);
}

void remove_uncommitted(const CheckpointRoot& root, const SaveTicket& ticket) {
  const std::string directory = checkpoint_directory(ticket.id);
  const auto names = root.tier().list(directory);
  if (!names.ok()) return;
  const bool has_commit = std::find(names->begin(), names->end(), commit_file) != names->end();
  if (has_commit && !ELRUN_PLANTED(removed_after_commit)) return;
  if (const auto removed = root.tier().remove_all(directory); !removed.ok())
    root.log().warning(
        fmt::format("what the failed save {} left could not be removed yet: {}", to_string(ticket.id), message(removed.failure())));
}

}  // namespace elrun::inline v0
