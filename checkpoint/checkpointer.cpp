/// \file The order of writes is the protocol: data synced, directory synced, manifest synced, directory synced, COMMIT
/// synced, linked, directory synced, ownership asked again, acknowledged. README.md says what a crash at each line
/// leaves.

#include "checkpoint/checkpointer.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/plan.hpp"
#include "checkpoint/records.hpp"
#include "checkpoint/resume.hpp"
#include "checkpoint/shard_file.hpp"
#include "checkpoint/storage.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr int claim_tries_max = 64;
constexpr FenceNumber any_fence = fence_max + 1;
constexpr std::string_view read_remedy = "let this user read the checkpoint root";
constexpr Bytes space_reserve = 4_MiB;  // for the other files of a save, and for others on the disk

std::string lines(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& line : all) text += "\n  " + line;
  return text;
}

/// Of what only reads: to write is no remedy.
template <class T>
Result<T> read_from(const Path& root, Result<T> result) {
  if (result.ok() || result.failure().code != Code::not_permitted || result.failure().what.find(read_remedy) != std::string::npos)
    return result;
  Failure why = std::move(result).failure();
  why.what = fmt::format("checkpoints under {} cannot be read ({}): {}, its directories and its files, on every node", root.string(),
                         why.what, read_remedy);
  return why;
}

/// What a job may do about another job's newer fence: nothing, unless it is its own later generation.
Failure superseded(const Path& root, const Author& mine, FenceNumber my_fence, const ClaimRecord& newer) {
  const bool own = newer.author.generation.lineage == mine.generation.lineage && newer.author.run_id == mine.run_id;
  return {.code = own ? Code::generation_over : Code::refused,
          .remedy = own ? Remedy::rejoin : Remedy::fix_config,
          .what = fmt::format("checkpoint root {} was taken over: fence {} belongs to {}; this job has fence {} and is {}. {}",
                              root.string(), newer.number, to_string(newer.author), my_fence, to_string(mine),
                              own ? "A later generation of this job saves from here on"
                                  : "Only one job may save to a root: stop one of them, or give them different directories"),
          .generation = mine.generation};
}

}  // namespace

ByteVector encode(const Start& start) {
  ByteWriter out;
  out.put(start.fence);
  out.put_text(start.choice ? to_string(*start.choice) : "");
  out.put(start.manifest_crc);
  const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(start.notes.size(), 64));
  out.put(count);
  for (std::uint32_t i = 0; i < count; ++i) out.put_text(std::string_view{start.notes[i]}.substr(0, 4096));
  return out.take();
}

Result<Start> decode_start(ByteSpan bytes) {
  ByteReader in{bytes};
  Start start{.fence = in.get<FenceNumber>()};
  const std::string name = in.get_text(64);
  start.choice = parse_checkpoint_id(name);
  if (!name.empty() && !start.choice) in.mark_broken();
  start.manifest_crc = in.get<std::uint32_t>();
  const auto count = in.get<std::uint32_t>();
  if (count > 64) in.mark_broken();
  for (std::uint32_t i = 0; i < count && !in.broken(); ++i) start.notes.push_back(in.get_text(4096));
  ELRUN_TRY(in.finish("the choice of a checkpoint"));
  return start;
}

ByteVector encode(const SaveTicket& ticket) {
  ByteWriter out;
  out.put_text(to_string(ticket.id));
  out.put_text(ticket.root);
  return out.take();
}

Result<SaveTicket> decode_save_ticket(ByteSpan bytes) {
  ByteReader in{bytes};
  const auto id = parse_checkpoint_id(in.get_text(64));
  if (!id) in.mark_broken();
  SaveTicket ticket{id.value_or(CheckpointId{}), in.get_text(32)};
  ELRUN_TRY(in.finish("the ticket of a save"));
  return ticket;
}

Checkpointer::Checkpointer(Files& files, const Clock& clock, const Log& log, Path root, Saver saver)
    : files_{files}, clock_{clock}, log_{log}, root_{std::move(root)}, saver_{std::move(saver)} {}
Checkpointer::Checkpointer(Checkpointer&&) noexcept = default;
Checkpointer::~Checkpointer() = default;

Author Checkpointer::author() const { return {saver_.run_id, saver_.generation, clock_.wall_ns()}; }
Path Checkpointer::path_of(const CheckpointId& id) const { return root_ / checkpoints_directory / to_string(id); }

std::string Checkpointer::unique() const {
  return fmt::format("{:016x}-{}-{}", saver_.generation.lineage.bits[0], saver_.generation.number, saver_.rank.value());
}

void Checkpointer::note(std::vector<std::string>& notes, std::string line) {
  log_.warning(line);
  notes.push_back(std::move(line));
}

/// Adds who and what to do about it; the storage's own message stays.
Failure Checkpointer::explained(Failure failure) const {
  failure.rank = saver_.rank;
  failure.generation = saver_.generation;
  if (failure.code == Code::not_permitted && failure.what.find(read_remedy) == std::string::npos)
    failure.what = fmt::format(
        "checkpoints cannot be kept under {} ({}): let this user write there, or choose another directory; "
        "the file system must support hard links",
        root_.string(), failure.what);
  if (failure.code == Code::no_space && failure.what.find(" are free") == std::string::npos) {
    const auto left = files_.space_left(root_);
    failure.what = fmt::format(
        "a checkpoint needs {} bytes of state, {} bytes are free under {} ({}): free some space, keep fewer "
        "checkpoints, or choose another directory",
        state_bytes(saver_.model), left.ok() ? fmt::to_string(left->value()) : "an unknown number of", root_.string(), failure.what);
  }
  return failure;
}

// --- the root ---

Result<std::optional<RunRecord>> Checkpointer::read_run() {
  const Path path = root_ / run_file;
  const auto text = files_.read_all(path, record_bytes_max);
  if (!text.ok() && text.failure().code == Code::not_found) return std::optional<RunRecord>{};
  if (!text.ok()) return text.failure();
  ELRUN_TRY_ASSIGN(RunRecord record, decode_run(*text, path.string()));
  ELRUN_TRY(same_job(record));
  return std::optional{std::move(record)};
}

Result<void> Checkpointer::same_job(const RunRecord& record) const {
  std::vector<std::string> differ = differences(record.plan, saver_.plan);
  for (std::string& line : differences(record.model, saver_.model)) differ.push_back(std::move(line));
  if (differ.empty()) return {};
  return Failure{.code = Code::mismatch,
                 .remedy = Remedy::fix_config,
                 .what = fmt::format("checkpoint root {} was made by {} with another plan or model; go on with that "
                                     "one, or use another directory:{}",
                                     root_.string(), to_string(record.author), lines(differ))};
}

/// All that RUN.json says is in every manifest of its root. So one that is damaged or gone is written again from the newest checkpoint
/// of `line` that is whole; where there is none, nothing is lost with it, and the next save makes another.
Result<std::optional<RunRecord>> Checkpointer::read_or_rebuild_run(const std::vector<CheckpointId>& line) {
  auto run = read_run();
  const bool damaged = !run.ok() && run.failure().code == Code::corrupt;
  if ((!run.ok() && !damaged) || (run.ok() && (*run || line.empty()))) return run;
  std::optional<RunRecord> rebuilt;
  std::string why = damaged ? run.failure().what : fmt::format("{} is gone", (root_ / run_file).string());
  for (auto id = line.rbegin(); id != line.rend(); ++id) {
    const auto commit = read_commit(files_, path_of(*id));
    if (!commit.ok()) continue;
    if (rebuilt && commit->root != rebuilt->root)
      return Failure{
          Code::corrupt, Remedy::fix_config,
          fmt::format(
              "{}, and cannot be written again: {} holds checkpoints of two roots; put the file back from a copy, or use another directory",
              why, (root_ / checkpoints_directory).string())};
    if (rebuilt) continue;
    auto whole = verify_checkpoint(files_, path_of(*id), *id, commit->root);
    if (whole.ok())
      rebuilt = RunRecord{commit->root, whole->manifest.author, std::move(whole->manifest.plan), std::move(whole->manifest.model)};
  }
  if (!rebuilt && !line.empty())
    return Failure{
        Code::corrupt, Remedy::fix_config,
        fmt::format(
            "{}, and no checkpoint under {} is whole enough to write it again; put the file back from a copy, or use another directory",
            why, root_.string())};
  if (rebuilt) ELRUN_TRY(same_job(*rebuilt));
  if (damaged) ELRUN_TRY(files_.rename(root_ / run_file, root_ / damaged_run_file));
  if (rebuilt) ELRUN_TRY(publish_once(files_, root_, run_file, unique(), encode(*rebuilt)));
  log_.warning(fmt::format(
      "{}; {}", why,
      rebuilt ? "it is written again from the newest checkpoint" : "there is no checkpoint either, so the next save makes another"));
  return rebuilt;
}

Result<void> Checkpointer::open_root() {
  std::vector<std::string> wrong = problems(saver_.model);
  for (std::string& line : problems(saver_.plan)) wrong.push_back(std::move(line));
  if (!wrong.empty()) return explained(invalid(wrong));
  if (const auto run = read_from(root_, read_run()); !run.ok() && run.failure().code != Code::corrupt) return explained(run.failure());
  return {};
}

Result<RunRecord> Checkpointer::read_or_make_run() {
  for (int tries = 0; tries < 2; ++tries) {
    ELRUN_TRY_ASSIGN(auto run, read_or_rebuild_run(timeline_));
    if (run) return std::move(*run);
    // The lineage is random, so the digest is an identity that no other root has.
    RunRecord mine{.root = {}, .author = author(), .plan = saver_.plan, .model = saver_.model};
    mine.root = to_hex(sha256(as_bytes(fmt::format("{} {} {}", to_string(mine.author), fence_, mine.author.wall_ns)))).substr(0, 32);
    auto made = publish_once(files_, root_, run_file, unique(), encode(mine));
    if (made.ok()) return mine;
    if (made.failure().code != Code::already_exists) return std::move(made).failure();
  }
  return Failure{Code::io, Remedy::retry, fmt::format("{} exists and does not", (root_ / run_file).string())};
}

// --- the start of a generation ---

/// `above`: a fence that is known and cannot be found. Its number is not used again, so a checkpoint's name never means two of them.
Result<void> Checkpointer::claim(FenceNumber above) {
  fence_ = 0;
  for (int tries = 0; tries < claim_tries_max; ++tries) {
    ELRUN_TRY_ASSIGN(const FenceNumber found, highest_fence(files_, root_));
    const FenceNumber highest = std::max(found, above);
    if (highest >= fence_max)
      return Failure{Code::exhausted, Remedy::fix_config,
                     fmt::format("{} has used up its fence numbers; use another directory", root_.string())};
    const ClaimRecord record{highest + 1, author()};
    auto claimed = publish_once(files_, root_ / fences_directory, claim_name(record.number), unique(), encode(record));
    if (claimed.ok()) return has_claimed_ = true, fence_ = record.number, Result<void>{};
    if (claimed.failure().code != Code::already_exists) return claimed;
  }
  return Failure{Code::exhausted, Remedy::retry,
                 fmt::format("{} others claimed a fence of {} first, one after the other", claim_tries_max, root_.string())};
}

Result<std::optional<FenceRecord>> Checkpointer::highest_published(FenceNumber below, std::vector<std::string>& notes) {
  ELRUN_TRY_ASSIGN(const auto numbers, find_fences(files_, root_));
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    if (*number >= below) continue;
    const Path path = root_ / fences_directory / fence_name(*number);
    const auto text = files_.read_all(path, record_bytes_max);
    if (!text.ok() && text.failure().code == Code::not_found) continue;  // claimed by one who died before it could save
    if (!text.ok() && text.failure().code != Code::corrupt) return text.failure();
    auto record = text.ok() ? decode_fence(*text, path.string()) : Result<FenceRecord>{text.failure()};
    if (record.ok() && record->number == *number) return std::optional{std::move(*record)};
    if (!record.ok() && record.failure().code != Code::corrupt) return std::move(record).failure();
    // What was committed under this number and above stays on the timeline; only what it inherited is judged by the
    // record below.
    notes.push_back(fmt::format("fence {} is passed over: {}", *number, record.ok() ? "it holds another number" : record.failure().what));
  }
  return std::optional<FenceRecord>{};
}

/// What is there, and what is known to have been there. Writes nothing. `below`: fences of this start and later ones do not count.
Result<RootView> Checkpointer::look(FenceNumber below, std::span<const Witness> outside, std::vector<std::string>& notes) {
  RootView view{.where = root_.string(), .witnesses = {outside.begin(), outside.end()}};
  // First what was promised, then what is there: another job may save meanwhile.
  ELRUN_TRY_ASSIGN(const auto acknowledged, find_acknowledged(files_, root_));
  ELRUN_TRY_ASSIGN(view.highest, highest_published(below, notes));
  ELRUN_TRY_ASSIGN(view.found, find_checkpoints(files_, root_));
  const std::vector<Found> line = timeline(view.found, view.highest);
  const auto run = read_run();
  if (!run.ok() && run.failure().code != Code::corrupt) return run.failure();
  if (run.ok() && *run) view.root = (*run)->root;
  for (auto f = line.rbegin(); f != line.rend() && view.root.empty(); ++f)  // until RUN.json is written again
    if (const auto commit = read_commit(files_, path_of(f->id)); commit.ok()) view.root = commit->root;

  for (const CheckpointId& id : acknowledged) {
    const Path path = root_ / fences_directory / acknowledgement_name(id);
    Witness w{.id = id, .says = fmt::format("{} says so", path.string())};  // by its name; the content is for people
    if (id == acknowledged.back())
      if (const auto text = files_.read_all(path, acknowledgement_bytes_max); text.ok())
        if (const auto record = decode_acknowledgement(*text, path.string()); record.ok() && record->id == id)
          w = witness(*record, path.string(), false);
    view.witnesses.push_back(std::move(w));
  }
  if (view.highest && !view.highest->inherits.empty()) {
    const CheckpointId id = view.highest->inherits.back();
    view.witnesses.push_back({.id = id,
                              .says = fmt::format("fence {} of {} says that {} was there", view.highest->number,
                                                  to_string(view.highest->author), to_string(id))});
  }
  ELRUN_TRY(look_for_fences(below, view));
  if (!line.empty()) return view;
  for (const Found& f : view.found) {  // roots of elrun 0.1.0 have no acknowledgements, but a manifest names the checkpoint before it
    const auto left = read_manifest(files_, path_of(f.id));
    if (left.ok() && left->manifest.parent)
      view.witnesses.push_back({.id = *left->manifest.parent,
                                .says = fmt::format("{} says that {} was committed before it", (path_of(f.id) / manifest_file).string(),
                                                    to_string(*left->manifest.parent))});
  }
  if (run.ok() && !*run) {
    if (const std::string mount = view.found.empty() && !view.highest ? files_.missing_mount(root_) : std::string{}; !mount.empty())
      view.hollow = fmt::format("is empty, and {}, which /etc/fstab has, is not mounted", mount);
    return view;
  }
  ELRUN_TRY_ASSIGN(const auto names, files_.list(root_));
  ELRUN_TRY_ASSIGN(const auto fences, find_fences(files_, root_));
  const bool has_directory = std::find(names.begin(), names.end(), checkpoints_directory) != names.end();
  if (fences.empty() || fences.front() >= below || !has_directory)
    view.hollow = fmt::format("has a {}, which its first save made, but {} is gone", run_file,
                              has_directory ? fences_directory : checkpoints_directory);
  return view;
}

/// A fence is published before the first save under it. So a COMMIT whose fence is not there, nor a later one, says that gens/ lost some
/// of its files, and with them what was acknowledged.
Result<void> Checkpointer::look_for_fences(FenceNumber below, RootView& view) {
  ELRUN_TRY_ASSIGN(const auto published, find_published_fences(files_, root_));  // after the checkpoints: another job may save meanwhile
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

/// Walks back from the newest until one passes all checks; `line` then ends with it, or is empty.
Result<void> Checkpointer::choose(std::vector<Found>& line, const std::string& root_identity, Start& start) {
  for (; !line.empty(); line.pop_back()) {
    const auto& [id, committed, quarantined, unreadable] = line.back();
    if (!unreadable.empty()) {
      if (const auto again = files_.list(path_of(id)); !again.ok() && again.failure().code != Code::io) return again.failure();
      note(start.notes, fmt::format("checkpoint {} cannot be read, going back to the one before it: {}", to_string(id), unreadable));
      continue;
    }
    if (quarantined || std::find(rejected_.begin(), rejected_.end(), id) != rejected_.end()) {
      note(start.notes, fmt::format("checkpoint {} is passed over: it was found damaged before", to_string(id)));
      continue;
    }
    auto verified = verify_checkpoint(files_, path_of(id), id, root_identity);
    if (!verified.ok() && verified.failure().code == Code::io)  // a network file system may have had a bad moment
      verified = verify_checkpoint(files_, path_of(id), id, root_identity);
    if (verified.ok()) {
      start.choice = id;
      start.manifest_crc = verified->crc;
      return {};
    }
    const Failure why = std::move(verified).failure();
    if (why.code == Code::not_found) {  // removed by its owner while we looked, or damaged?
      const auto names = files_.list(path_of(id));
      if (!names.ok() || std::find(names->begin(), names->end(), commit_file) == names->end()) continue;
    }
    const bool damaged = why.code == Code::corrupt || why.code == Code::not_found;
    if (!damaged && why.code != Code::io) return why;
    note(start.notes, fmt::format("checkpoint {} cannot be used, going back to the one before it: {}", to_string(id), why.what));
    if (damaged) (void)quarantine(id, why);
  }
  return {};
}

Result<Start> Checkpointer::start(std::span<const Witness> outside) { return start(outside, false); }
Result<Start> Checkpointer::start_with_state(std::span<const Witness> outside) { return start(outside, true); }

Result<Start> Checkpointer::start(std::span<const Witness> outside, bool has_state) {
  auto started = [&]() -> Result<Start> {
    ELRUN_TRY(open_root());
    // Before anything is written: where the storage is not mounted, its mount point stays as it is.
    std::vector<std::string> unsaid;
    ELRUN_TRY_ASSIGN(RootView before, read_from(root_, look(any_fence, outside, unsaid)));
    const bool is_empty = before.found.empty() && !before.highest && before.root.empty();
    if (has_state && has_claimed_ && is_empty)
      return Failure{
          Code::not_found, Remedy::fix_config,
          fmt::format(
              "{} is empty, and this job's fence is gone: was the checkpoint root removed or unmounted while the job runs? Put it back",
              root_.string())};
    const std::vector<Found> listed = timeline(before.found, before.highest);
    const auto newest = listed.empty() ? std::nullopt : std::optional{listed.back().id};
    const auto allowed = has_state ? save_on(before) : resume(before, newest, {}, saver_.begin_anew);
    // A step that is given up with all that is left of a damaged root is known only when that was looked into.
    const bool is_about_damage = !listed.empty() && saver_.begin_anew.has_value();
    if (const auto* no = std::get_if<Failure>(&allowed); no != nullptr && !is_about_damage) return *no;

    for (const Path& directory : {root_, root_ / fences_directory, root_ / checkpoints_directory})
      ELRUN_TRY(files_.make_directories(directory));
    FenceNumber above = 0;
    for (const Witness& w : missing(before)) above = std::max(above, w.id.fence);
    ELRUN_TRY(claim(above));  // before the listing: whatever was acknowledged until now is in it

    Start start{.fence = fence_};
    ELRUN_TRY_ASSIGN(RootView view, read_from(root_, look(fence_, outside, start.notes)));
    view.hollow = before.hollow;
    for (const std::string& line : start.notes) log_.warning(line);
    std::vector<Found> line = timeline(view.found, view.highest);
    const std::size_t had = line.size();
    std::vector<CheckpointId> ids;
    for (const Found& f : line) ids.push_back(f.id);
    ELRUN_TRY_ASSIGN(const auto run, read_or_rebuild_run(ids));

    const std::size_t said = start.notes.size();
    if (run && !has_state)
      ELRUN_TRY(read_from(root_, choose(line, run->root, start)));  // with state, nobody needs to know yet which are whole
    const std::vector<std::string> passed_over(start.notes.begin() + static_cast<std::ptrdiff_t>(said), start.notes.end());
    auto decided = has_state ? save_on(view) : resume(view, start.choice, passed_over, saver_.begin_anew);
    if (auto* no = std::get_if<Failure>(&decided)) return std::move(*no);
    GoOn& go = std::get<GoOn>(decided);
    for (std::string& text : go.notes) note(start.notes, std::move(text));
    if (had == 0 && std::any_of(view.found.begin(), view.found.end(), [](const Found& f) { return f.committed; }))
      note(start.notes,
           fmt::format("checkpoints under {} were committed by jobs that had lost the root, or were given up; they are ignored, and kept",
                       root_.string()));

    timeline_.clear();
    for (const Found& f : line)
      if (!f.quarantined) timeline_.push_back(f.id);
    given_up_ = std::move(go.gives_up);
    const FenceRecord fence{.number = fence_,
                            .author = author(),
                            .world = saver_.world.value(),
                            .inherits = timeline_,
                            .resumed_from = start.choice,
                            .gives_up = given_up_};
    ELRUN_TRY(publish_once(files_, root_ / fences_directory, fence_name(fence_), unique(), encode(fence)));
    if (has_state) return start;
    log_.info(
        start.choice ? fmt::format("fence {}: going on from checkpoint {}", fence_, to_string(*start.choice))
        : is_empty
            ? fmt::format(
                  "fence {}: beginning at step 0, for {} was empty; if this job had checkpoints, stop it now: is the storage mounted?",
                  fence_, root_.string())
            : fmt::format("fence {}: {} holds no checkpoint, beginning at step 0", fence_, root_.string()));
    return start;
  }();
  if (started.ok()) return started;
  fence_ = 0;  // no save before a start that succeeded
  return explained(std::move(started).failure());
}

Result<std::vector<Aux>> Checkpointer::load(const Start& start, std::span<const Fragment> fragments) {
  auto loaded = [&]() -> Result<std::vector<Aux>> {
    if (!start.choice) return Failure{Code::not_found, Remedy::fix_config, "there is no checkpoint to load"};
    const Path directory = path_of(*start.choice);
    ELRUN_TRY_ASSIGN(const auto read, read_manifest(files_, directory));
    const Manifest& manifest = read.manifest;
    if (read.crc != start.manifest_crc || manifest.id != *start.choice)
      return Failure{Code::corrupt, Remedy::retry,
                     fmt::format("{} has CRC-32C {:08x}, the leader saw {:08x}: do all nodes see the same storage?",
                                 (directory / manifest_file).string(), read.crc, start.manifest_crc)};
    if (const auto differ = differences(manifest.model, saver_.model); !differ.empty())
      return Failure{Code::mismatch, Remedy::fix_config,
                     fmt::format("checkpoint {} is of another model:{}", to_string(manifest.id), lines(differ))};

    // Host state is small and everybody's; it rides along as fragments behind those of the caller.
    ELRUN_TRY_ASSIGN(std::vector<ReadExtent> reads, plan_reads(manifest, fragments));
    std::vector<Aux> aux;
    std::vector<std::span<std::byte>> targets;
    for (const Fragment& fragment : fragments) targets.push_back(fragment.bytes);
    for (const AuxRecord& a : manifest.aux) aux.push_back({a.name, ByteVector(a.bytes)});
    for (std::size_t i = 0; i < aux.size(); ++i) {
      const AuxRecord& a = manifest.aux[i];
      reads.push_back({a.file, a.offset, a.bytes, targets.size(), 0});
      targets.emplace_back(aux[i].bytes);
    }
    std::stable_sort(reads.begin(), reads.end(),
                     [](const ReadExtent& a, const ReadExtent& b) { return std::tie(a.file, a.offset) < std::tie(b.file, b.offset); });

    // Readers begin at different files, so that they do not all queue at the first one.
    std::vector<std::pair<std::size_t, std::size_t>> runs;
    for (std::size_t i = 0; i < reads.size(); ++i) {
      if (i == 0 || reads[i].file != reads[i - 1].file) runs.emplace_back(i, i);
      runs.back().second = i + 1;
    }
    if (!runs.empty()) std::rotate(runs.begin(), runs.begin() + saver_.rank.value() % runs.size(), runs.end());
    for (const auto& [from, until] : runs) {
      ELRUN_TRY_ASSIGN(ShardReader shard, ShardReader::open(files_, directory, manifest.files[reads[from].file]));
      ELRUN_TRY(shard.read(std::span{reads}.subspan(from, until - from), targets));
    }
    return aux;
  }();
  if (loaded.ok()) return loaded;
  Failure why = explained(read_from(root_, std::move(loaded)).failure());
  if (start.choice) why.what = fmt::format("checkpoint {} cannot be loaded: {}", to_string(*start.choice), why.what);
  return why;
}

bool Checkpointer::quarantine(const CheckpointId& id, const Failure& why) {
  const auto marked = publish_once(files_, path_of(id), quarantine_file, unique(), fmt::format("{}\n", message(why)));
  if (marked.ok() || marked.failure().code == Code::already_exists) return true;
  log_.warning(fmt::format("checkpoint {} could not be marked as damaged: {}", to_string(id), message(marked.failure())));
  return false;
}

Result<void> Checkpointer::reject(const Start& start, const Failure& why) {
  if (!start.choice) return explained(invalid("there was no checkpoint to reject"));
  // A rank that sees another storage than the leader must not condemn what is whole: the leader looks for itself.
  const auto seen = [&]() -> Result<void> {
    const auto run = read_run();
    if (!run.ok()) return run.failure();
    if (!*run) return Failure{Code::not_found, Remedy::fix_config, "RUN.json is gone"};
    ELRUN_TRY_ASSIGN(const auto read, verify_checkpoint(files_, path_of(*start.choice), *start.choice, (*run)->root));
    for (const FileRecord& file : read.manifest.files) {
      ELRUN_TRY_ASSIGN(ShardReader shard, ShardReader::open(files_, path_of(*start.choice), file));
      ELRUN_TRY(shard.check());
    }
    return {};
  }();
  if (seen.ok()) {
    Failure other = why;
    other.remedy = Remedy::fix_config;
    other.what = fmt::format("{}; the leader reads all of checkpoint {} without an error: do all nodes see the same {}?", why.what,
                             to_string(*start.choice), root_.string());
    return other;
  }
  rejected_.push_back(*start.choice);
  log_.warning(fmt::format("checkpoint {} is given up: {}", to_string(*start.choice), message(why)));
  const Code code = seen.failure().code;
  if (code == Code::corrupt || code == Code::not_found) (void)quarantine(*start.choice, seen.failure());
  return {};
}

// --- a save ---

Result<void> Checkpointer::no_newer_fence() {
  if (fence_ == 0) return Failure{Code::refused, Remedy::rejoin, "this process has not claimed a fence of the checkpoint root"};
  ELRUN_TRY_ASSIGN(const auto numbers, read_from(root_, find_fences(files_, root_)));
  if (numbers.empty() || numbers.back() < fence_)
    return Failure{Code::not_found, Remedy::fix_config,
                   fmt::format("fence {} is gone from {}: was the checkpoint root removed while the job runs?", fence_, root_.string())};
  if (numbers.back() == fence_) return {};
  const Path path = root_ / fences_directory / claim_name(numbers.back());
  const auto text = files_.read_all(path, record_bytes_max);
  auto newer = text.ok() ? decode_claim(*text, path.string()) : Result<ClaimRecord>{text.failure()};
  if (!newer.ok()) newer = ClaimRecord{numbers.back(), {.run_id = "unknown", .generation = {}}};  // refused all the same
  return superseded(root_, author(), fence_, *newer);
}

Result<SaveTicket> Checkpointer::begin_save(std::uint64_t step, std::uint64_t aux_bytes) {
  auto begun = [&]() -> Result<SaveTicket> {
    if (step > step_max) return Failure{Code::invalid_argument, Remedy::fix_config, fmt::format("step {} is beyond {}", step, step_max)};
    ELRUN_TRY(no_newer_fence());
    ELRUN_TRY_ASSIGN(const Bytes left, files_.space_left(root_));
    const std::uint64_t state = state_bytes(saver_.model) + aux_bytes;
    const Bytes needed = Bytes{state + state / 50} + Bytes{saver_.world.value() * std::uint64_t{16384}} + space_reserve;
    if (left < needed)
      return Failure{Code::no_space, Remedy::fix_config,
                     fmt::format("a checkpoint of step {} needs {} bytes under {}, {} bytes are free: free some space, "
                                 "keep fewer checkpoints, or choose another directory",
                                 step, needed.value(), root_.string(), left.value())};
    ELRUN_TRY_ASSIGN(const RunRecord run, read_or_make_run());
    CheckpointId id{step, fence_, 1};
    ELRUN_TRY_ASSIGN(const auto found, find_checkpoints(files_, root_));
    for (const Found& f : found)
      if (f.id.step == step && f.id.fence == fence_) id.attempt = std::max(id.attempt, f.id.attempt + 1);
    if (tried_ && tried_->step == step && tried_->fence == fence_) id.attempt = std::max(id.attempt, tried_->attempt + 1);  // removed since
    if (id.attempt > attempt_max)
      return Failure{Code::exhausted, Remedy::fix_config, fmt::format("step {} was tried {} times", step, attempt_max)};
    tried_ = id;
    ELRUN_TRY(files_.make_directory(path_of(id)));
    ELRUN_TRY(files_.sync_directory(root_ / checkpoints_directory));
    return SaveTicket{id, run.root};
  }();
  if (!begun.ok()) return explained(std::move(begun).failure());
  return begun;
}

PartVote Checkpointer::write_part(const SaveTicket& ticket, std::span<const Fragment> fragments, std::span<const Aux> aux) {
  PartVote vote{.id = ticket.id, .rank = saver_.rank.value(), .refusal = {}};
  if (auto written = write_part_files(ticket, fragments, aux, vote); !written.ok()) vote.refusal = explained(std::move(written).failure());
  return vote;
}

Result<void> Checkpointer::write_part_files(const SaveTicket& ticket, std::span<const Fragment> fragments, std::span<const Aux> aux,
                                            PartVote& vote) {
  const std::uint32_t rank = saver_.rank.value(), world = saver_.world.value();
  const Path directory = path_of(ticket.id);
  ELRUN_TRY_ASSIGN(const ShardLayout layout, lay_out_shard(saver_.model, ticket.id, ticket.root, author(), rank, world, fragments, aux));
  auto part = write_shard(files_, directory, layout);
  if (!part.ok()) {
    Failure why = std::move(part).failure();
    if (why.code == Code::no_space) {
      const auto left = files_.space_left(root_);
      why.what = fmt::format(
          "{} needs {} bytes, {} bytes are free under {} ({}): free some space, keep fewer checkpoints, or choose "
          "another directory",
          layout.part.file.name, layout.part.file.bytes, left.ok() ? fmt::to_string(left->value()) : "an unknown number of", root_.string(),
          why.what);
    }
    return why;
  }
  const std::string text = encode(*part);
  if (auto written = files_.write_durably(directory / part_name(rank, world), as_bytes(text)); !written.ok()) {
    (void)files_.remove_file(directory / part_name(rank, world));
    (void)files_.remove_file(directory / layout.part.file.name);
    return written;
  }
  ELRUN_TRY(files_.sync_directory(directory));
  vote.part_bytes = text.size();
  vote.part_crc = crc32c(as_bytes(text));
  return {};
}

Result<void> Checkpointer::commit(const SaveTicket& ticket, std::span<const PartVote> votes,
                                  const std::function<Result<void>()>& still_owner) {
  bool published = false;
  auto done = commit_prepared(ticket, votes, still_owner, published);
  if (done.ok()) return done;
  if (!published) abandon(ticket);  // once COMMIT may be there, it stays: the next start judges it
  Failure why = std::move(done).failure();
  const auto saver_rank = why.rank;
  why = explained(std::move(why));
  if (saver_rank) why.rank = saver_rank;  // the rank that voted no
  why.what = fmt::format("checkpoint {} was not saved, earlier ones are untouched: {}", to_string(ticket.id), why.what);
  return why;
}

Result<void> Checkpointer::commit_prepared(const SaveTicket& ticket, std::span<const PartVote> votes,
                                           const std::function<Result<void>()>& still_owner, bool& published) {
  SaveRound round = begin_round(ticket.id, saver_.world.value(), Deadline{});
  for (const PartVote& vote : votes) round = with_vote(std::move(round), vote);
  const SaveVerdict decided = verdict(round, Instant{});
  if (const auto* abandoned = std::get_if<AbandonSave>(&decided)) return abandoned->why;

  const Path directory = path_of(ticket.id);
  std::vector<PartRecord> parts;
  std::uint64_t total = 0;
  for (const PartVote& vote : std::get<CommitSave>(decided).votes) {
    const Path path = directory / part_name(vote.rank, saver_.world.value());
    ELRUN_TRY_ASSIGN(const ByteVector text, read_from(root_, files_.read_all(path, record_bytes_max)));
    if (text.size() != vote.part_bytes || crc32c(text) != vote.part_crc)
      return Failure{.code = Code::corrupt,
                     .remedy = Remedy::fix_config,
                     .what = fmt::format("{} is not what its rank wrote: do all nodes see the same storage?", path.string()),
                     .rank = Rank{vote.rank}};
    ELRUN_TRY_ASSIGN(PartRecord part, decode_part(text, path.string()));
    ELRUN_TRY(read_from(root_, ShardReader::open(files_, directory, part.file)));
    total += part.file.bytes;
    parts.push_back(std::move(part));
  }
  Manifest head{.id = ticket.id,
                .root = ticket.root,
                .author = author(),
                .parent = {},
                .world = saver_.world.value(),
                .plan = saver_.plan,
                .model = saver_.model,
                .files = {},
                .fragments = {},
                .aux = {}};
  if (!timeline_.empty()) head.parent = timeline_.back();
  ELRUN_TRY_ASSIGN(const Manifest manifest, merge(std::move(head), std::move(parts)));
  const std::string text = encode(manifest);
  if (text.size() > manifest_bytes_max.value())
    return Failure{Code::exhausted, Remedy::fix_config, fmt::format("the manifest would have {} bytes; use fewer units", text.size())};
  ELRUN_TRY(files_.write_durably(directory / manifest_file, as_bytes(text)));
  ELRUN_TRY(files_.sync_directory(directory));

  ELRUN_TRY(still_owner());
  ELRUN_TRY(no_newer_fence());
  const CommitRecord record{
      ticket.id, ticket.root, author(), text.size(), crc32c(as_bytes(text)), to_hex(sha256(as_bytes(text))), manifest.files.size(), total};
  published = true;
  ELRUN_TRY(publish_once(files_, directory, commit_file, unique(), encode(record)));
  timeline_.push_back(ticket.id);
  // Whoever took over since then may have looked before COMMIT appeared: such a commit must not be promised to anybody.
  ELRUN_TRY(still_owner());
  ELRUN_TRY(no_newer_fence());
  ELRUN_TRY(acknowledge(ticket));
  log_.info(fmt::format("checkpoint {} committed: {} bytes in {} files", to_string(ticket.id), total, manifest.files.size()));
  return {};
}

/// The name alone says it, and COMMIT is durable: so a torn one is as good as a whole one, and a lost one was never promised.
Result<void> Checkpointer::acknowledge(const SaveTicket& ticket) {
  const Path directory = root_ / fences_directory, path = directory / acknowledgement_name(ticket.id);
  std::string text = encode(Acknowledgement{ticket.id, ticket.root, author(), root_.string(), saver_.plan.hash});
  auto written = files_.write_durably(path, as_bytes(text));
  if (written.ok()) written = files_.sync_directory(directory);
  if (!written.ok()) {
    (void)files_.remove_file(path);
    return written;
  }
  acknowledged_ = std::move(text);
  return {};
}

void Checkpointer::abandon(const SaveTicket& ticket) {
  const Path directory = path_of(ticket.id);
  const auto names = files_.list(directory);
  if (!names.ok() || std::find(names->begin(), names->end(), commit_file) != names->end()) return;
  if (const auto removed = remove_tree(files_, directory); !removed.ok())
    log_.warning(
        fmt::format("what the failed save {} left could not be removed yet: {}", to_string(ticket.id), message(removed.failure())));
}

Result<FenceNumber> highest_fence(Files& files, const Path& root) {
  ELRUN_TRY_ASSIGN(const auto numbers, find_fences(files, root));
  ELRUN_TRY_ASSIGN(const auto found, find_checkpoints(files, root));
  FenceNumber highest = numbers.empty() ? 0 : numbers.back();
  for (const Found& f : found) highest = std::max(highest, f.id.fence);
  return highest;
}

Result<std::uint64_t> newest_generation(Files& files, const Path& root) {
  constexpr std::size_t claims_read_max = 16;  // numbers grow along with the fences; more than one job may have claimed
  ELRUN_TRY_ASSIGN(const auto numbers, find_fences(files, root));
  std::uint64_t newest = 0;
  for (std::size_t i = 0; i < std::min(numbers.size(), claims_read_max); ++i) {
    const Path path = root / fences_directory / claim_name(numbers[numbers.size() - 1 - i]);
    const auto text = files.read_all(path, record_bytes_max);
    const auto claim = text.ok() ? decode_claim(*text, path.string()) : Result<ClaimRecord>{text.failure()};
    if (claim.ok()) newest = std::max(newest, claim->author.generation.number);  // an unreadable one says nothing
  }
  return newest;
}

}  // namespace elrun::inline v0
