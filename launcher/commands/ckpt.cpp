#include "launcher/commands/ckpt.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/commit/resume.hpp"
#include "checkpoint/tools/compare.hpp"
#include "checkpoint/tools/read_root.hpp"
#include "checkpoint/tools/verify.hpp"
#include "launcher/output/print_out.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/files.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr unsigned readers_default = 4;
constexpr Duration progress_every = 200ms;

int failed(const Failure& why) {
  std::fflush(stdout);
  fmt::print(stderr, "elrun: ckpt: {}\n", printable(why.what, Lines::many));
  switch (why.code) {
    case Code::not_found: return exit_code::no_input;
    case Code::corrupt:
    case Code::mismatch: return exit_code::damaged;
    default: return exit_code::internal;
  }
}

int ls(const CkptOptions& options, Files& files, const Clock& clock) {
  const auto facts = read_root(files, clock, options.names[0].root);
  if (!facts.ok()) return failed(facts.failure());
  print_out(options.as_json ? document(listing_json(*facts)) : listing_text(*facts, clock.wall_ns()));
  return 0;
}

int inspect_one(const CkptOptions& options, Files& files, const Clock& clock) {
  const auto found = find_checkpoint(files, clock, options.names[0]);
  if (!found.ok()) return failed(found.failure());
  auto one = inspect(files, *found);
  if (!one.ok()) return failed(one.failure());
  if (options.reads_as) {
    auto shares = reader_shares(one->manifest, *options.reads_as);
    if (!shares.ok()) return failed(shares.failure());
    one->shares = *std::move(shares);
  }
  print_out(options.as_json ? document(inspection_json(*one)) : inspection_text(*one, clock.wall_ns()));
  return 0;
}

/// A line that is written over, on a terminal alone.
class ProgressLine {
 public:
  explicit ProgressLine(const Clock& clock) : clock_{clock}, began_{clock.now()}, is_shown_{::isatty(STDERR_FILENO) == 1} {}
  void show(const std::string& what, std::uint64_t done, std::uint64_t all) {
    const Instant now = clock_.now();
    if (!is_shown_ || now - last_ < progress_every) return;
    last_ = now;
    const double rate = static_cast<double>(done) / std::max(1e-3, seconds(now - began_));
    fmt::print(stderr, "\r{}: {} of {}, {}/s ", what, size_text(done), size_text(all), size_text(static_cast<std::uint64_t>(rate)));
    is_dirty_ = true;
  }
  void clear() {
    if (std::exchange(is_dirty_, false)) fmt::print(stderr, "\r{:78}\r", "");
  }

 private:
  const Clock& clock_;
  const Instant began_;
  Instant last_{};
  const bool is_shown_;
  bool is_dirty_ = false;
};

/// The checkpoints that are to be verified, of a root with this identity.
struct ToVerify {
  std::vector<CheckpointId> ids;
  std::string root;
  bool are_committed = true;
};
Result<ToVerify> to_verify(const CheckpointName& name, Files& files, const Clock& clock) {
  if (name.step || name.id) {
    ELRUN_TRY_ASSIGN(const auto one, find_checkpoint(files, clock, name));
    const auto at = std::ranges::find(one.facts.view.found, one.id, &Found::id);
    return ToVerify{{one.id}, one.facts.view.root, at != one.facts.view.found.end() && at->committed};
  }
  ELRUN_TRY_ASSIGN(const auto facts, read_root(files, clock, name.root));
  ToVerify out{.ids = {}, .root = facts.view.root};
  for (const ListedCheckpoint& l : list_checkpoints(facts)) {
    using State = ListedCheckpoint::State;
    if (l.state == State::quarantined)
      fmt::print(stderr, "elrun: ckpt: {} is quarantined and left out; name its step to verify it\n", to_string(l.id));
    else if (l.state != State::uncommitted && l.state != State::missing && l.state != State::given_up) out.ids.push_back(l.id);
  }
  if (!out.ids.empty()) return out;
  return Failure{Code::not_found, Remedy::fix_config,
                 fmt::format("{} has no committed checkpoint to verify; `elrun ckpt ls {}` says what is there", name.root, name.root)};
}

int verify(const CkptOptions& options, Files& files, const Clock& clock) {
  const CheckpointName name = settled(files, options.names[0]);
  const auto meant = to_verify(name, files, clock);
  if (!meant.ok()) return failed(meant.failure());
  std::vector<VerifiedCheckpoint> all;
  for (const CheckpointId& id : meant->ids) {
    ProgressLine line{clock};
    const Instant began = clock.now();
    const VerifyOptions how{.readers = options.readers > 0 ? options.readers : readers_default,
                            .was_committed = meant->are_committed,
                            .progress = [&](std::uint64_t done, std::uint64_t bytes) { line.show(to_string(id), done, bytes); }};
    const Path directory = Path{name.root} / checkpoints_directory / to_string(id);
    auto found = verify_all(files, directory, id, meant->root, how);
    line.clear();
    if (!found.ok() && !name.step && !name.id) {
      fmt::print(stderr, "elrun: ckpt: {}: it is left out\n", found.failure().what);
      continue;
    }
    if (!found.ok()) return failed(found.failure());
    all.push_back({id, *std::move(found), clock.now() - began});
    if (!options.as_json) print_out(verified_text(all.back()));
    std::fflush(stdout);
    if (all.back().found.cut_off) break;  // all behind it would fail alike
  }
  if (all.empty() && !meant->ids.empty())
    return failed(
        {.code = Code::not_found, .what = fmt::format("none of the checkpoints of {} is there any more: nothing was verified", name.root)});
  if (options.as_json) print_out(document(verified_json(all)));
  if (!all.empty() && all.back().found.cut_off) return failed(*all.back().found.cut_off);
  return std::ranges::all_of(all, [](const VerifiedCheckpoint& one) { return one.found.is_whole(); }) ? 0 : 1;
}

Result<Side> side_named(const CheckpointName& name, Files& files, const Clock& clock) {
  ELRUN_TRY_ASSIGN(const auto found, find_checkpoint(files, clock, name));
  return side_of(files, found);
}

int diff(const CkptOptions& options, Files& files, const Clock& clock) {
  std::vector<Side> sides;
  for (const CheckpointName& name : options.names) {
    auto side = side_named(name, files, clock);
    if (!side.ok()) return failed(side.failure());
    sides.push_back(*std::move(side));
  }
  const auto all = compare(files, sides[0], sides[1]);
  if (!all.ok()) return failed(all.failure());
  print_out(options.as_json ? document(comparison_json(*all, sides[0], sides[1])) : comparison_text(*all, sides[0], sides[1]));
  return all->equal() ? 0 : 1;
}

}  // namespace

int run_ckpt(const CkptOptions& options, const StorageLimits& limits, const Clock& clock) {
  TimedFiles files{std::make_shared<PosixFiles>(), limits};
  switch (options.verb) {
    case CkptOptions::Verb::ls: return ls(options, files, clock);
    case CkptOptions::Verb::inspect: return inspect_one(options, files, clock);
    case CkptOptions::Verb::verify: return verify(options, files, clock);
    case CkptOptions::Verb::diff: return diff(options, files, clock);
  }
  return exit_code::internal;
}

}  // namespace elrun::inline v0::launcher
