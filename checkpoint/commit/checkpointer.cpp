// Checkpointer: starts and loads. saving.cpp has the saves, retain.cpp what goes after them.

#include "checkpoint/commit/checkpointer.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/commit/look.hpp"
#include "checkpoint/commit/resume.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/storage/in_parallel.hpp"
#include "checkpoint/storage/shard_file.hpp"
#include "checkpoint/storage/storage.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr FenceNumber any_fence = fence_max + 1;

}  // namespace

Checkpointer::Checkpointer(Tier& tier, const Clock& clock, const Log& log, Saver saver, unsigned at_once)
    : root_{tier, clock, log, std::move(saver), at_once} {}
Checkpointer::Checkpointer(Files& files, const Clock& clock, const Log& log, Path root, Saver saver, unsigned at_once)
    : own_tier_{std::make_unique<FilesTier>(files, std::move(root), unique_name(saver), at_once)},
      root_{*own_tier_, clock, log, std::move(saver), at_once} {}
Checkpointer::Checkpointer(Checkpointer&&) noexcept = default;
Checkpointer::~Checkpointer() = default;

Result<void> Checkpointer::open_root() const {
  ELRUN_TRY(read_own_run());
  return {};
}

/// Nothing where there is none, or it is damaged.
Result<std::optional<RunRecord>> Checkpointer::read_own_run() const {
  std::vector<std::string> wrong = problems(root_.saver().model);
  for (std::string& line : problems(root_.saver().plan)) wrong.push_back(std::move(line));
  if (!wrong.empty()) return root_.explained(invalid(wrong));
  auto run = root_.of_reading(root_.read_run());
  if (run.ok()) return run;
  if (run.failure().code == Code::corrupt) return std::optional<RunRecord>{};
  return root_.explained(std::move(run).failure());
}

/// Lists before it asks for a name: a client of a network file system that goes by its cache asks the server again when a directory is listed, and not when it remembers that a name is absent.
Result<RootSight> Checkpointer::sight() const {
  const auto names_in = [&](const char* directory) -> Result<std::vector<std::string>> {
    auto names = root_.tier().list(directory);
    if (names.ok()) return names;
    const Code why = names.failure().code;
    const bool is_storage = why == Code::io || why == Code::unreachable || why == Code::deadline_passed;
    if (!is_storage) return std::vector<std::string>{};
    return root_.explained(std::move(names).failure());
  };
  ELRUN_TRY_ASSIGN(const auto names, names_in(""));
  ELRUN_TRY_ASSIGN(const auto run, read_own_run());
  const bool has_fences = std::find(names.begin(), names.end(), fences_directory) != names.end();
  ELRUN_TRY_ASSIGN(const auto fences, has_fences ? names_in(fences_directory) : Result{std::vector<std::string>{}});
  return root_sight(run ? run->root : std::string{}, fences);
}

Result<Start> Checkpointer::start(const KnownElsewhere& outside, const AskRanks& ask) {
  auto started = begin(outside, ask);
  if (started.ok()) return started;
  const Code why = started.failure().code;
  const bool is_storage = why == Code::io || why == Code::unreachable || why == Code::deadline_passed;
  if (is_storage) rejected_.clear();  // it fails as a whole, and not these checkpoints: they get another look when it works again
  fence_.release();                   // no save before a start that succeeded
  return root_.explained(std::move(started).failure());
}

/// Before anything is written: where the storage is not mounted, its mount point stays as it is.
Result<RootView> Checkpointer::look_at_first(const KnownElsewhere& outside, std::vector<std::string>& notes) const {
  ELRUN_TRY_ASSIGN(RootView view, root_.of_reading(look(root_, any_fence, outside.witnesses, notes)));
  if (auto one = see_one_storage(view, outside.sights); !one.ok()) {
    // So the next look asks the server, where this node's client of a network file system remembers a name as absent.
    (void)root_.tier().list("");
    return std::move(one).failure();
  }
  return view;
}

Result<Start> Checkpointer::begin(const KnownElsewhere& outside, const AskRanks& ask) {
  ELRUN_TRY(open_root());
  std::vector<std::string> unsaid;
  Findings findings{
      .rejected = rejected_, .suspects = outside.suspects, .decided = outside.decided, .begin_anew = root_.saver().begin_anew};
  ELRUN_TRY_ASSIGN(findings.view, look_at_first(outside, unsaid));
  const RootView before = findings.view;
  Findings expected = findings;
  // What --begin_anew gives up may be all that is left of a damaged root. Looked into here, for a start that is refused takes over nothing.
  if (!findings.begin_anew)
    for (const Found& f : before.found) expected.looked.push_back({.id = f.id});
  ELRUN_TRY(decided(root_, std::move(expected), ask));
  if (auto claimed = claim_fence(before); !claimed.ok()) {  // before the listing: whatever was acknowledged until now is in it
    if (claimed.failure().code != Code::not_permitted) return std::move(claimed).failure();
    return start_without_fence(std::move(findings), std::move(unsaid), ask, std::move(claimed).failure());
  }

  Start start{.fence = fence_.number()};
  ELRUN_TRY_ASSIGN(findings.view, root_.of_reading(look(root_, fence_.number(), outside.witnesses, start.notes)));
  findings.view.hollow = before.hollow;
  std::vector<CheckpointId> line;
  for (const Found& f : timeline(findings.view.found, findings.view.highest)) line.push_back(f.id);
  ELRUN_TRY_ASSIGN(const auto run, root_.read_or_rebuild_run(line));
  if (run) findings.view.root = run->root;
  ELRUN_TRY_ASSIGN(Resumption go, decided(root_, std::move(findings), ask));
  for (const LookedInto& damaged : go.to_mark) (void)root_.quarantine(damaged.id, Failure{Code::corrupt, Remedy::fix_config, damaged.why});
  tell(start, go);
  timeline_ = go.inherits;
  whole_.clear();
  if (go.from) whole_.push_back(*go.from);
  ELRUN_TRY(fence_.make_durable(root_, timeline_, go.from));
  ELRUN_TRY(fence_.publish(root_, timeline_, go.from, std::move(go.gives_up)));
  const bool was_empty = before.found.empty() && !before.highest && before.root.empty();
  root_.log().info(
      go.from ? fmt::format("fence {}: going on from checkpoint {}", fence_.number(), to_string(*go.from))
      : was_empty
          ? fmt::format(
                "fence {}: beginning at step 0, for {} was empty; if this job had checkpoints, stop it now: is the storage mounted?",
                fence_.number(), root_.where())
          : fmt::format("fence {}: {} holds no checkpoint, beginning at step 0", fence_.number(), root_.where()));
  return start;
}

/// Puts a decision into what the job tells all ranks, and its notes into the log.
void Checkpointer::tell(Start& start, const Resumption& go) const {
  start.choice = go.from;
  start.manifest_crc = go.manifest_crc;
  start.why = go.why;
  start.steps_again = go.steps_again;
  start.notes.insert(start.notes.end(), go.notes.begin(), go.notes.end());
  for (const std::string& line : start.notes) root_.log().warning(line);
}

Result<Start> Checkpointer::start_with_state(std::uint64_t step, const KnownElsewhere& outside) {
  auto started = begin_with_state(step, outside);
  if (started.ok()) return started;
  fence_.release();
  return root_.explained(std::move(started).failure());
}

Result<Start> Checkpointer::begin_with_state(std::uint64_t step, const KnownElsewhere& outside) {
  ELRUN_TRY(open_root());
  std::vector<std::string> unsaid;
  ELRUN_TRY_ASSIGN(const RootView before, look_at_first(outside, unsaid));
  if (fence_.was_claimed() && before.found.empty() && !before.highest && before.root.empty())
    return Failure{
        Code::not_found, Remedy::fix_config,
        fmt::format(
            "{} is empty, and this job's fence is gone: was the checkpoint root removed or unmounted while the job runs? Put it back",
            root_.where())};
  if (const auto allowed = save_on(before); const auto* no = std::get_if<Failure>(&allowed)) return *no;
  ELRUN_TRY(claim_fence(before));

  Start start{.fence = fence_.number()};
  ELRUN_TRY_ASSIGN(RootView view, root_.of_reading(look(root_, fence_.number(), outside.witnesses, start.notes)));
  view.hollow = before.hollow;
  std::vector<CheckpointId> line;
  for (const Found& f : timeline(view.found, view.highest)) line.push_back(f.id);
  ELRUN_TRY(root_.read_or_rebuild_run(line));
  auto allowed = save_on(view);
  if (auto* no = std::get_if<Failure>(&allowed)) return std::move(*no);
  GoOn& go = std::get<GoOn>(allowed);
  Resumption kept{.notes = std::move(go.notes)};
  while (!line.empty() && line.back().step > step) {
    kept.notes.push_back(
        fmt::format("checkpoint {} is newer than the state of step {} with which the job goes on: it is not used, and kept",
                    to_string(line.back()), step));
    line.pop_back();
  }
  tell(start, kept);
  timeline_ = inheritance(view, line.empty() ? std::nullopt : std::optional{line.back()});
  whole_.clear();  // nobody needs to know yet which are whole
  ELRUN_TRY(fence_.make_durable(root_, timeline_, {}));
  ELRUN_TRY(fence_.publish(root_, timeline_, {}, std::move(go.gives_up)));
  return start;
}

Result<void> Checkpointer::claim_fence(const RootView& before) {
  for (const char* directory : {"", fences_directory, checkpoints_directory}) ELRUN_TRY(root_.tier().make_directories(directory));
  FenceNumber above = 0;
  for (const Witness& w : missing(before)) above = std::max(above, w.id.fence);
  return fence_.claim(root_, above);
}

/// Under a root that cannot be written. What a start writes is for those who come after it, and this one leaves nothing to them: no save is
/// possible before it has claimed a fence.
Result<Start> Checkpointer::start_without_fence(Findings findings, std::vector<std::string> notes, const AskRanks& ask, Failure why) {
  if (findings.begin_anew) return why;  // what is given up has to be written down
  ELRUN_TRY(fence_.go_without(root_));
  std::vector<CheckpointId> line;
  for (const Found& f : timeline(findings.view.found, findings.view.highest)) line.push_back(f.id);
  ELRUN_TRY_ASSIGN(const auto found, root_.of_reading(root_.find_run(line)));
  if (!found.run) return why;
  findings.view.root = found.run->root;
  ELRUN_TRY_ASSIGN(Resumption go, decided(root_, std::move(findings), ask));
  if (!go.from) return why;
  go.notes.push_back(fmt::format(
      "checkpoint root {} cannot be written ({}): going on from checkpoint {}, and no checkpoint can be saved until this user may "
      "write there",
      root_.where(), why.what, to_string(*go.from)));
  Start start{.notes = std::move(notes)};
  tell(start, go);
  return start;
}

Result<std::optional<NewestCheckpoint>> Checkpointer::newest(const KnownElsewhere& outside) const {
  const auto looked = [&]() -> Result<std::optional<NewestCheckpoint>> {
    ELRUN_TRY(open_root());
    std::vector<std::string> unsaid;  // a start says it
    Findings findings{
        .rejected = rejected_, .suspects = outside.suspects, .decided = outside.decided, .begin_anew = root_.saver().begin_anew};
    ELRUN_TRY_ASSIGN(findings.view, look_at_first(outside, unsaid));
    ELRUN_TRY_ASSIGN(const Resumption go, decided(root_, std::move(findings)));
    if (!go.from) return std::optional<NewestCheckpoint>{};
    ELRUN_TRY_ASSIGN(const CommitRecord commit, root_.of_reading(read_commit(root_.tier(), checkpoint_directory(*go.from))));
    return std::optional{NewestCheckpoint{*go.from, commit.author.generation}};
  }();
  return looked.ok() ? looked : root_.explained(looked.failure());
}

ShardFindings Checkpointer::check_shards(const ShardQuestion& check) const {
  ShardFindings found{.rank = root_.saver().rank.value()};
  const std::string directory = checkpoint_directory(check.id);
  const auto read = read_manifest(root_.tier(), directory);
  if (!read.ok() || read->crc != check.manifest_crc) {
    found.is_blind = true;
    found.why = read.ok() ? fmt::format("{} is another one than the leader's", root_.where(name_in(directory, manifest_file)))
                          : read.failure().what;
    return found;
  }
  const auto share = share_of_checks(static_cast<std::uint32_t>(read->manifest.files.size()), found.rank, root_.saver().world.value());
  std::vector<Result<void>> results(share.size());
  in_parallel(share.size(), root_.at_once(), [&](std::size_t i) {
    results[i] = with_memory([&] { return verify_shards(root_.tier(), directory, read->manifest, std::span{&share[i], 1}); });
  });
  for (std::size_t i = 0; i < share.size(); ++i) {
    if (results[i].ok()) continue;
    if (results[i].failure().code == Code::exhausted) return {.rank = found.rank, .is_blind = true, .why = results[i].failure().what};
    if (found.bad.empty()) found.why = results[i].failure().what;
    found.bad.push_back(share[i]);
  }
  return found;
}

Result<std::vector<Aux>> Checkpointer::load(const Start& start, std::span<const Fragment> fragments) {
  LoadsAlone alone;
  return load(start, fragments, alone);
}

Result<std::vector<Aux>> Checkpointer::load(const Start& start, std::span<const Fragment> fragments, LoadGroup& group, LoadLimits limits) {
  const auto told = [&](Failure why) {
    why = root_.explained(root_.of_reading(Result<void>{std::move(why)}).failure());
    if (start.choice) why.what = fmt::format("checkpoint {} cannot be loaded: {}", to_string(*start.choice), why.what);
    return why;
  };
  const auto manifest = manifest_to_load(start);
  ELRUN_TRY(group.agree(manifest.ok() ? Result<void>{} : Result<void>{told(manifest.failure())}));
  const std::string directory = checkpoint_directory(*start.choice);
  return load_shared({.tier = root_.tier(),
                      .directory = directory,
                      .manifest = *manifest,
                      .fragments = fragments,
                      .group = group,
                      .limits = limits,
                      .told = told});
}

Result<Manifest> Checkpointer::manifest_to_load(const Start& start) const {
  if (!start.choice) return Failure{Code::not_found, Remedy::fix_config, "there is no checkpoint to load"};
  const std::string directory = checkpoint_directory(*start.choice);
  ELRUN_TRY_ASSIGN(auto read, read_manifest(root_.tier(), directory));
  const Manifest& manifest = read.manifest;
  if (read.crc != start.manifest_crc || manifest.id != *start.choice)
    return Failure{Code::corrupt, Remedy::retry,
                   fmt::format("{} has CRC-32C {:08x}, the leader saw {:08x}: do all nodes see the same storage?",
                               root_.where(name_in(directory, manifest_file)), read.crc, start.manifest_crc)};
  if (const auto differ = differences(manifest.model, root_.saver().model); !differ.empty())
    return Failure{Code::mismatch, Remedy::fix_config,
                   fmt::format("checkpoint {} is of another model:{}", to_string(manifest.id), indented_lines(differ))};
  return std::move(read.manifest);
}

Result<void> Checkpointer::reject(const Start& start, const Failure& why) {
  if (!start.choice) return root_.explained(invalid("there was no checkpoint to reject"));
  // A rank that sees another storage than the leader must not condemn what is whole: the leader looks for itself.
  const auto seen = [&]() -> Result<void> {
    ELRUN_TRY_ASSIGN(const auto commit,
                     read_commit(root_.tier(), checkpoint_directory(*start.choice)));  // RUN.json was compared by the start
    ELRUN_TRY_ASSIGN(const auto read, verify_checkpoint(root_.tier(), checkpoint_directory(*start.choice), *start.choice, commit.root));
    for (const FileRecord& file : read.manifest.files) {
      ELRUN_TRY_ASSIGN(ShardReader shard, ShardReader::open(root_.tier(), checkpoint_directory(*start.choice), file));
      ELRUN_TRY(shard.check());
    }
    return {};
  }();
  if (seen.ok()) {
    Failure other = why;
    other.remedy = why.code == Code::io ? Remedy::retry : Remedy::fix_config;  // a rank that cannot read may be able to, some time later
    other.what = fmt::format("{}; the leader reads all of checkpoint {} without an error: do all nodes see the same {}?", why.what,
                             to_string(*start.choice), root_.where());
    return other;
  }
  const Code code = seen.failure().code;
  if (code != Code::corrupt && code != Code::not_found) {  // no proof of damage: another time may be a better one
    const Failure& cannot_look = seen.failure();
    return root_.explained(code == Code::io ? cannot_be_read(root_.where(), *start.choice, cannot_look.what) : cannot_look);
  }
  rejected_.push_back({*start.choice, seen.failure().what});
  root_.log().warning(fmt::format("checkpoint {} is given up: {}", to_string(*start.choice), message(why)));
  (void)root_.quarantine(*start.choice, seen.failure());
  return {};
}

void Checkpointer::take_over(Ownership of) {
  fence_.take_over(of.fence, std::move(of.gives_up));
  timeline_ = std::move(of.timeline);
  whole_ = std::move(of.whole);
}

void Checkpointer::committed_elsewhere(const CheckpointId& id) {
  const auto at = std::lower_bound(timeline_.begin(), timeline_.end(), id);
  if (at != timeline_.end() && *at == id) return;
  timeline_.insert(at, id);
  whole_.push_back(id);
}

}  // namespace elrun::inline v0
