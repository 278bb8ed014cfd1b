#include "checkpoint/commit/root.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/storage/storage.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::string_view read_remedy = "let this user read the checkpoint root";

}  // namespace

std::string unique_name(const Saver& saver) {
  return fmt::format("{:016x}-{}-{}", saver.generation.lineage.bits[0], saver.generation.number, saver.rank.value());
}

std::string indented_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

Author CheckpointRoot::author() const { return {saver_.run_id, saver_.generation, clock_.wall_ns()}; }

Failure CheckpointRoot::explained(Failure failure) const {
  failure.rank = saver_.rank;
  failure.generation = saver_.generation;
  if (failure.code == Code::not_permitted && failure.what.find(read_remedy) == std::string::npos)
    failure.what = fmt::format(
        "checkpoints cannot be kept under {} ({}): let this user write there, or choose another directory; "
        "the file system must support hard links",
        where_, failure.what);
  if (failure.code == Code::no_space && failure.what.find(" are free") == std::string::npos) {
    const auto left = tier_.space_left();
    failure.what = fmt::format(
        "a checkpoint needs {} bytes of state, {} bytes are free under {} ({}): free some space, keep fewer "
        "checkpoints, or choose another directory",
        state_bytes(saver_.model), left.ok() ? fmt::to_string(left->value()) : "an unknown number of", where_, failure.what);
  }
  return failure;
}

Failure CheckpointRoot::not_readable(Failure failure) const {
  if (failure.what.find(read_remedy) == std::string::npos)
    failure.what = fmt::format("checkpoints under {} cannot be read ({}): {}, its directories and its files, on every node", where_,
                               failure.what, read_remedy);
  return failure;
}

Result<std::optional<RunRecord>> CheckpointRoot::read_run() const {
  const auto text = read_record(tier_, run_file, record_bytes_max);
  if (!text.ok() && text.failure().code == Code::not_found) return std::optional<RunRecord>{};
  if (!text.ok()) return text.failure();
  ELRUN_TRY_ASSIGN(RunRecord record, decode_run(*text, where(run_file)));
  ELRUN_TRY(same_job(record));
  return std::optional{std::move(record)};
}

Result<void> CheckpointRoot::same_job(const RunRecord& record) const {
  std::vector<std::string> differ = differences(record.plan, saver_.plan);
  for (std::string& line : differences(record.model, saver_.model)) differ.push_back(std::move(line));
  if (differ.empty()) return {};
  return Failure{.code = Code::mismatch,
                 .remedy = Remedy::fix_config,
                 .what = fmt::format("checkpoint root {} was made by {} with another plan or model; go on with that "
                                     "one, or use another directory:{}",
                                     where_, to_string(record.author), indented_lines(differ))};
}

Result<CheckpointRoot::FoundRun> CheckpointRoot::find_run(const std::vector<CheckpointId>& line) const {
  auto run = read_run();
  if (!run.ok() && run.failure().code != Code::corrupt) return std::move(run).failure();
  if (run.ok() && (*run || line.empty())) return FoundRun{*std::move(run), {}};
  FoundRun found{{}, run.ok() ? fmt::format("{} is gone", where(run_file)) : run.failure().what};
  const auto hopeless = [&](const std::string& why) {
    return Failure{Code::corrupt, Remedy::fix_config,
                   fmt::format("{}, and {}; put the file back from a copy, or use another directory", found.wrong, why)};
  };
  for (auto id = line.rbegin(); id != line.rend(); ++id) {
    const auto commit = read_commit(tier_, checkpoint_directory(*id));
    if (!commit.ok()) continue;
    if (found.run && commit->root != found.run->root)
      return hopeless(fmt::format("cannot be written again: {} holds checkpoints of two roots", where(checkpoints_directory)));
    if (found.run) continue;
    auto whole = verify_checkpoint(tier_, checkpoint_directory(*id), *id, commit->root, at_once_);
    if (whole.ok())
      found.run = RunRecord{commit->root, whole->manifest.author, std::move(whole->manifest.plan), std::move(whole->manifest.model)};
  }
  if (!found.run && !line.empty()) return hopeless(fmt::format("no checkpoint under {} is whole enough to write it again", where_));
  if (found.run) ELRUN_TRY(same_job(*found.run));
  return found;
}

Result<std::optional<RunRecord>> CheckpointRoot::read_or_rebuild_run(const std::vector<CheckpointId>& line) const {
  ELRUN_TRY_ASSIGN(FoundRun found, find_run(line));
  if (found.wrong.empty()) return std::move(found.run);
  // What has the name and cannot be read, a link that leads nowhere among it, is kept for people.
  ELRUN_TRY_ASSIGN(const auto names, tier_.list(""));
  if (std::find(names.begin(), names.end(), run_file) != names.end()) {
    std::string aside = damaged_run_file;
    auto moved = tier_.set_aside(run_file, aside);
    if (!moved.ok()) {  // a directory has the name
      aside = fmt::format("{}-{}", damaged_run_file, unique_name(saver_));
      moved = tier_.set_aside(run_file, aside);
    }
    ELRUN_TRY(std::move(moved));
    // A process that was frozen since it looked moves what a later start has written meanwhile, and checkpoints may be of that root by now.
    const auto text = read_record(tier_, aside, record_bytes_max);
    if (auto whole = text.ok() ? decode_run(*text, where(aside)) : Result<RunRecord>{text.failure()}; whole.ok()) {
      auto back = tier_.publish(run_file, as_bytes(encode(*whole)));
      if (!back.ok() && back.failure().code != Code::already_exists) return std::move(back).failure();
      return read_run();
    }
  }
  if (found.run) ELRUN_TRY(tier_.publish(run_file, as_bytes(encode(*found.run))));
  log_.warning(fmt::format(
      "{}; {}", found.wrong,
      found.run ? "it is written again from the newest checkpoint" : "there is no checkpoint either, so the next save makes another"));
  return std::move(found.run);
}

Result<RunRecord> CheckpointRoot::read_or_make_run(const std::vector<CheckpointId>& line, FenceNumber fence) const {
  for (int tries = 0; tries < 2; ++tries) {
    ELRUN_TRY_ASSIGN(auto run, read_or_rebuild_run(line));
    if (run) return std::move(*run);
    // The lineage is random, so the digest is an identity that no other root has.
    RunRecord mine{.root = {}, .author = author(), .plan = saver_.plan, .model = saver_.model};
    mine.root = to_hex(sha256(as_bytes(fmt::format("{} {} {}", to_string(mine.author), fence, mine.author.wall_ns)))).substr(0, 32);
    const std::string text = encode(mine);
    ELRUN_TRY(check_run_size(text.size()));
    auto made = tier_.publish(run_file, as_bytes(text));
    if (made.ok()) return mine;
    if (made.failure().code != Code::already_exists) return std::move(made).failure();
  }
  return Failure{Code::io, Remedy::retry, fmt::format("{} exists and does not", where(run_file))};
}

bool CheckpointRoot::quarantine(const CheckpointId& id, const Failure& why) const {
  const auto marked = tier_.publish(name_in(checkpoint_directory(id), quarantine_file), as_bytes(fmt::format("{}\n", message(why))));
  if (marked.ok() || marked.failure().code == Code::already_exists) return true;
  log_.warning(fmt::format("checkpoint {} could not be marked as damaged: {}", to_string(id), message(marked.failure())));
  return false;
}

}  // namespace elrun::inline v0
