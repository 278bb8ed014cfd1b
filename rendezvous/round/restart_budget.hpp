#pragma once
/// \file RestartBudget: what a failure of a worker costs, when the job has no restart left, and how long repeated failures back off. Pure.
///
/// The limit is `--max_restarts`; without it 3 for a Job and 0 for any other program.
/// A Job's failure is free in three cases:
///  * A step was decided for the first time since its last failure.
///  * It belongs to the failure that ended the generation before. Workers often fail for one reason, one after the other: those that had not come back to the new
///    generation fail in what they began in the last one.
///  * The worker was killed by SIGKILL within `killed_together_within` of a failure.
/// A used restart does not come back, except by `refund`. Two exit codes of a Job are never restarted: 78, a wrong configuration, and 173, no checkpoint could be saved
/// for too long.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0 {

constexpr std::int32_t job_restarts = 3;  ///< Of a Job program, when `--max_restarts` is not given.
/// Workers that fail in the same way so soon after their start, twice or more in a row, are started again after a pause: 1 s,
/// doubled each time, 16 s at most. It costs no more restarts than `--max_restarts`.
constexpr Duration start_over_within = 10s;
constexpr Duration start_pause = 1s;
constexpr std::uint32_t start_pause_doublings_max = 4;

/// What kills one worker (a scheduler, a person, memory that ran out) often kills others in the same moment: workers that are killed by SIGKILL
/// so soon after a failure belong to it.
constexpr Duration killed_together_within = 1s;

class RestartBudget {
 public:
  /// A worker of the job is a Job's, so all are.
  void note_job(bool is_job = true) { is_job_ |= is_job; }
  [[nodiscard]] bool is_job() const { return is_job_; }
  /// Restarts that the job has in all. `max_restarts`: as given, -1 if it was not.
  [[nodiscard]] std::int32_t limit(std::int32_t max_restarts) const {
    return max_restarts >= 0 ? max_restarts : is_job_ ? job_restarts : 0;
  }

  /// A failure ends the job if its program is no Job.
  [[nodiscard]] bool is_used_up_for_plain_program(std::int32_t max_restarts) const {
    return static_cast<std::int64_t>(counts_.used) >= std::max(max_restarts, 0);
  }

  /// What another coordinator counted, as a node was told it: this one counts on from there. A job that has used more than its limit is over,
  /// so larger numbers are not believed.
  void count_on_from(const RestartCounts& before, std::int32_t max_restarts, std::uint32_t generations_max);
  [[nodiscard]] const RestartCounts& counts() const { return counts_; }
  void generation_ended(EndCause cause) { counts_.generations += is_failure(cause) ? 1 : 0; }
  /// A generation begins: its failures are not those of the one before.
  void generation_began() {
    charged_ = false;
    failed_before_ = std::exchange(failed_, false);
  }
  /// A failure with this exit code belongs to one that was judged before. `before_return`: as in WorkerFailed.
  [[nodiscard]] bool belongs_to_last_failure(std::int32_t exit_code, bool before_return, Instant now) const;

  /// A step was decided. True if no generation had decided it before.
  bool decided(std::uint64_t step);
  /// The newest step of the whole job.
  [[nodiscard]] std::uint64_t newest_step() const { return newest_step_; }

  /// A worker failed so long after its generation began. Failures alike, in a row, soon after the start, back off. A worker that was killed
  /// from outside did not fail by itself.
  void note_failure(std::int32_t exit_code, Duration after_start, Instant now);
  /// The next failure is not one of a row.
  void end_row() { alike_ = 0; }
  [[nodiscard]] std::uint32_t row() const { return alike_; }
  [[nodiscard]] std::int32_t row_exit_code() const { return alike_code_; }
  /// Until then no generation begins. Zero: there is no pause.
  [[nodiscard]] Instant pause_until() const { return pause_until_; }

  struct Charge {
    std::optional<std::string> exhausted;  ///< Why the job fails now. None: it is tried again.
    std::string note;                      ///< "; restart 1 of 3", for the line that tells of the failure
  };
  /// The generation ends by a failure with this exit code.
  [[nodiscard]] Charge charge(std::int32_t exit_code, std::int32_t max_restarts, Instant now, bool before_return = false);
  /// The failure that was charged last in this generation was the consequence of a lost node: it is given back. False: none was charged.
  bool refund();

 private:
  ELRUN_COMPARED_IN_SIMULATION
  RestartCounts counts_;
  bool is_job_ = false;
  bool progressed_ = false;                      // a step that was never decided before was, since the last failure of a worker
  bool charged_ = false;                         // the failure that ended this generation used up a restart
  Instant judged_at_{};                          // of the newest failure that belongs to no earlier one; zero: there was none
  bool failed_ = false, failed_before_ = false;  // this generation was ended by a failure that was judged here; the one before was
  std::uint64_t newest_step_ = 0;
  std::uint32_t alike_ = 0;  // failures in a row soon after the start, with the same exit code
  std::int32_t alike_code_ = 0;
  Instant pause_until_{};
};

}  // namespace elrun::inline v0
