#pragma once
/// \file Shell: a checkpoint root as one member of one generation sees it: the tier that keeps it, its RUN.json, and what a failure on it says.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

#include "checkpoint/format/model.hpp"
#include "checkpoint/format/names.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/tiers/tier.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0 {

/// Who saves: fixed for one generation.
struct Saver {
  std::string run_id;  ///< `--rdzv_id`, for people.
  Generation generation;
  Rank rank;
  WorldSize world{1};
  PlanIdentity plan;
  ModelTable model;
  std::optional<LossName> begin_anew{};  ///< `--begin_anew`: the lost checkpoint that a person gives up.
};

/// How many operations on files of one checkpoint a process makes at the same time, where it looks into all of them or removes them. They wait for the storage
/// and not for a core, so a leader of thousands of ranks takes a fraction of the time; a network file system has queues of about this length for one client.
constexpr unsigned storage_operations_at_once = 32;

/// Tells a member's preparations of a file apart from those of others.
[[nodiscard]] std::string unique_name(const Saver& saver);

/// Not thread-safe. `tier`, `clock` and `log` outlive it. It holds nothing of what is on the storage: every call asks anew.
class CheckpointRoot {
 public:
  /// `at_once`: operations on files of one checkpoint; from 2 on `tier` is called by several threads.
  CheckpointRoot(Tier& tier, const Clock& clock, const Log& log, Saver saver, unsigned at_once = 1)
      : tier_{tier}, clock_{clock}, log_{log}, where_{tier.where("")}, saver_{std::move(saver)}, at_once_{at_once} {}

  [[nodiscard]] Tier& tier() const { return tier_; }
  [[nodiscard]] const Log& log() const { return log_; }
  /// For people, and what others remember it by.
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] std::string where(std::string_view name) const { return tier_.where(name); }
  [[nodiscard]] const Saver& saver() const { return saver_; }
  [[nodiscard]] unsigned at_once() const { return at_once_; }
  /// Who writes, and when: now.
  [[nodiscard]] Author author() const;

  /// RUN.json; nothing when there is none. Fails with `mismatch` when another plan or model made the root.
  [[nodiscard]] Result<std::optional<RunRecord>> read_run() const;
  struct FoundRun {
    std::optional<RunRecord> run;
    std::string wrong;  ///< Why RUN.json has to be written again; empty: it need not be.
  };
  /// All that RUN.json says is in every manifest of its root. So for one that is damaged or gone the newest checkpoint of `line` that is whole
  /// stands in; where there is none, nothing is lost with it, and the next save makes another. Writes nothing.
  [[nodiscard]] Result<FoundRun> find_run(const std::vector<CheckpointId>& line) const;
  /// The same, and such a RUN.json is written again.
  [[nodiscard]] Result<std::optional<RunRecord>> read_or_rebuild_run(const std::vector<CheckpointId>& line) const;
  /// The same, and makes one with a new identity where there is none.
  [[nodiscard]] Result<RunRecord> read_or_make_run(const std::vector<CheckpointId>& line, FenceNumber fence) const;

  /// Marks a checkpoint as damaged; false, with a line in the log, where that cannot be written.
  bool quarantine(const CheckpointId& id, const Failure& why) const;

  /// Adds who and what to do about it; the storage's own message stays.
  [[nodiscard]] Failure explained(Failure failure) const;
  /// The result of a call that only reads: where that is not permitted, permission to write is no remedy.
  template <class T>
  [[nodiscard]] Result<T> of_reading(Result<T> result) const {
    if (result.ok() || result.failure().code != Code::not_permitted) return result;
    return not_readable(std::move(result).failure());
  }

 private:
  [[nodiscard]] Result<void> same_job(const RunRecord& record) const;
  [[nodiscard]] Failure not_readable(Failure failure) const;

  Tier& tier_;
  const Clock& clock_;
  const Log& log_;
  std::string where_;
  Saver saver_;
  unsigned at_once_;
};

/// A line each, below a sentence.
[[nodiscard]] std::string indented_lines(const std::vector<std::string>& lines);

}  // namespace elrun::inline v0
