#include "checkpoint/tools/read_root.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/commit/look.hpp"
#include "checkpoint/commit/root.hpp"
#include "checkpoint/storage/storage.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr FenceNumber every_fence = fence_max + 1;
constexpr Bytes mark_bytes_max{65536};

/// A root belongs to the job whose plan and model it has, and a tool has neither: so it takes the root's own. Those of RUN.json, or
/// of the newest manifest that can be read.
Saver saver_of(Tier& tier, const std::vector<Found>& found) {
  Saver saver{.run_id = "elrun ckpt", .generation = {}, .rank = Rank{0}, .world = WorldSize{1}, .plan = {}, .model = {}};
  if (const auto text = read_record(tier, run_file, record_bytes_max); text.ok())
    if (auto run = decode_run(*text, run_file); run.ok()) {
      saver.plan = std::move(run->plan), saver.model = std::move(run->model);
      return saver;
    }
  for (auto f = found.rbegin(); f != found.rend(); ++f) {
    if (!f->committed) continue;
    auto manifest = read_manifest(tier, checkpoint_directory(f->id));
    if (!manifest.ok()) continue;
    saver.plan = std::move(manifest->manifest.plan), saver.model = std::move(manifest->manifest.model);
    break;
  }
  return saver;
}

Result<void> is_root(Files& files, const Path& path) {
  const auto refuse = [&](const std::string& why) {
    return Failure{
        Code::not_found, Remedy::fix_config,
        fmt::format("{} is no checkpoint root: {}; name the directory that the job was given (Job: CheckpointOptions::directory, gpt: "
                    "--checkpoint)",
                    path.string(), why)};
  };
  const auto names = files.list(path);
  if (!names.ok() && names.failure().code == Code::not_found) return refuse("it is not there");
  if (!names.ok() && names.failure().code == Code::invalid_argument) return refuse("it is no directory");
  if (!names.ok()) return names.failure();
  for (const char* name : {run_file, fences_directory, checkpoints_directory})
    if (std::find(names->begin(), names->end(), name) != names->end()) return {};
  if (names->empty()) return refuse("it is empty");
  return refuse(fmt::format("it has neither {} nor {} nor {}", run_file, fences_directory, checkpoints_directory));
}

/// What a start would come to, with what the storage knows alone.
WouldStart would_start(const CheckpointRoot& root, RootFacts& facts) {
  std::vector<CheckpointId> line;
  for (const Found& f : timeline(facts.view.found, facts.view.highest)) line.push_back(f.id);
  auto run = root.find_run(line);
  if (!run.ok()) return std::move(run).failure();
  if (!run->wrong.empty()) facts.notes.push_back(fmt::format("{}; the next start writes it again", run->wrong));
  facts.run = std::move(run->run);
  if (facts.run) facts.view.root = facts.run->root;
  auto go = decided(root, {.view = facts.view});
  if (!go.ok()) return std::move(go).failure();
  return std::move(go).value();
}

}  // namespace

Result<RootFacts> read_root(Files& files, const Clock& clock, const std::string& where) {
  const Path path{where};
  ELRUN_TRY(is_root(files, path));
  FilesTier tier{files, path};
  ELRUN_TRY_ASSIGN(std::vector<Found> found, find_checkpoints(tier));
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.id < b.id; });
  const Log silent{"", [](Level, std::string_view) {}};
  const CheckpointRoot root{tier, clock, silent, saver_of(tier, found)};
  RootFacts facts;
  // Before and after: a job that saves meanwhile acknowledges what the look did not see yet, and retention takes an acknowledgement back before its checkpoint goes.
  ELRUN_TRY_ASSIGN(const std::vector<CheckpointId> before, find_acknowledged(tier));
  ELRUN_TRY_ASSIGN(facts.view, root.of_reading(look(root, every_fence, {}, facts.notes)));
  ELRUN_TRY_ASSIGN(facts.acknowledged, find_acknowledged(tier));
  const auto is_new = [&](const CheckpointId& id) {
    const auto at = std::ranges::find(facts.view.found, id, &Found::id);
    return std::ranges::find(before, id) == before.end() && (at == facts.view.found.end() || !at->committed);
  };
  std::erase_if(facts.acknowledged, is_new);
  for (const Found& f : facts.view.found) {
    if (f.committed)
      if (auto commit = read_commit(tier, checkpoint_directory(f.id)); commit.ok() && commit->id == f.id)
        facts.commits.emplace(f.id, *std::move(commit));
    if (!f.quarantined) continue;
    const auto mark = tier.get_all(name_in(checkpoint_directory(f.id), quarantine_file), mark_bytes_max);
    facts.quarantined_for.emplace(f.id, mark.ok() ? std::string{as_text(*mark)} : mark.failure().what);
  }
  facts.start = would_start(root, facts);
  return facts;
}

CheckpointName settled(Files& files, CheckpointName name) {
  if (name.word.empty() || !is_root(files, name.word).ok()) return name;
  return {.root = std::move(name.word)};
}

Result<ReadCheckpoint> find_checkpoint(Files& files, const Clock& clock, const CheckpointName& given) {
  const CheckpointName name = settled(files, given);
  ReadCheckpoint one;
  ELRUN_TRY_ASSIGN(one.facts, read_root(files, clock, name.root));
  const std::vector<Found> line = timeline(one.facts.view.found, one.facts.view.highest);
  std::optional<CheckpointId> id;
  if (name.step || name.id) {
    auto chosen = choose(name, one.facts.view.found, line);
    if (const auto* why = std::get_if<std::string>(&chosen)) return Failure{Code::not_found, Remedy::fix_config, *why};
    id = std::get<CheckpointId>(chosen);
  } else {
    if (const auto* go = std::get_if<Resumption>(&one.facts.start)) id = go->from;
    for (const Found& f : line)
      if (!std::get_if<Resumption>(&one.facts.start)) id = f.id;
  }
  if (!id)
    return Failure{
        Code::not_found, Remedy::fix_config,
        fmt::format("{} has no checkpoint from which a job could go on; `elrun ckpt ls {}` says what is there", name.root, name.root)};
  one.id = *id;
  one.directory = Path{name.root} / checkpoints_directory / to_string(*id);
  return one;
}

Result<Inspection> inspect(Files& files, const ReadCheckpoint& checkpoint) {
  Inspection one{.where = checkpoint.directory.string(), .state = {}, .manifest = {}};
  for (const ListedCheckpoint& l : list_checkpoints(checkpoint.facts))
    if (l.id == checkpoint.id)
      one.state = l.why.empty() ? to_string(l.state) : fmt::format("{}: {}", to_string(l.state), l.why.substr(0, l.why.find('\n')));
  FilesTier tier{files, checkpoint.directory};
  const std::string path = tier.where(manifest_file);
  auto text = read_record(tier, manifest_file, manifest_bytes_max);
  if (!text.ok() && text.failure().code == Code::not_found)
    return Failure{Code::not_found, Remedy::fix_config,
                   fmt::format("{} is not there: this save did not get that far, or the file was removed", path)};
  if (!text.ok()) return std::move(text).failure();
  one.manifest_bytes = text->size();
  ELRUN_TRY_ASSIGN(one.manifest, decode_manifest(*text, path));
  const std::string& root = checkpoint.facts.view.root;
  const auto is_of_another = [&](const auto& record) { return record.id != checkpoint.id || (!root.empty() && record.root != root); };
  const auto commit = read_commit(tier, "");
  if (!commit.ok() && commit.failure().code != Code::not_found) one.problem = commit.failure().what;
  else if (commit.ok() && is_of_another(*commit))
    one.problem = fmt::format("{} {}", tier.where(commit_file), in_wrong_place(commit->id, commit->root, checkpoint.id, root));
  else if (commit.ok() && (commit->manifest_bytes != text->size() || commit->manifest_crc != crc32c(*text)))
    one.problem = fmt::format("{} is not the one that COMMIT vouches for", path);
  else if (is_of_another(one.manifest))
    one.problem = fmt::format("{} {}", path, in_wrong_place(one.manifest.id, one.manifest.root, checkpoint.id, root));
  return one;
}

}  // namespace elrun::inline v0
