#pragma once
/// \file SaveRecord: which step is on storage and since when, and which saves of this generation came to nothing. A job without a checkpoint for too long ends here.

#include <cstdint>

#include <elrun/failure.hpp>
#include <elrun/session.hpp>
#include <elrun/units.hpp>

#include "lib/base/clock.hpp"
#include "lib/job/recover/member_status.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Ends the job with an exit code of its own, after which elrun does not restart it.
class CheckpointTooOld : public Error {
 public:
  using Error::Error;
  static constexpr int exit_code = 173;
};

/// Called by the job's thread. Instants are this member's.
class SaveRecord {
 public:
  /// All outlive it. The job begins here: until the first checkpoint its age is the time since now.
  SaveRecord(const Clock& clock, Session& session, JobWorld& world)
      : clock_{clock}, session_{session}, world_{world}, safe_at_{clock.now()} {}

  void begin_generation() { failed_ = left_out_ = 0; }

  /// The newest step that is on storage, as far as this member knows; `never_saved` before the first.
  [[nodiscard]] std::uint64_t step() const { return step_; }
  void set_step(std::uint64_t step) { step_ = step; }
  /// A checkpoint of this step was committed just now. One of a later step may have been since it was begun.
  void saved(std::uint64_t step);
  /// When the state was last as safe as a checkpoint makes it.
  [[nodiscard]] Instant safe_at() const { return safe_at_; }
  /// It was saved, or loaded, or another member knows when it was.
  void set_safe_at(Instant at) { safe_at_ = at; }
  [[nodiscard]] Duration age() const;
  /// In the process of a run of the program before this one.
  void continue_from(const SaveRecord& before) { step_ = before.step_, safe_at_ = before.safe_at_; }

  /// The agent hears of a save that failed.
  void tell_of_failure(std::uint64_t step, const Failure& why) { session_.save_failed(StepNumber{step}, ++failed_, why); }
  /// A save came while another was being written. Returns how many of this generation did.
  std::uint64_t leave_out(std::uint64_t step);
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }
  /// On all ranks: ends the job by `CheckpointTooOld` where nothing was saved for longer than `max_age` (0: any time), by the leader's clock, for all ranks end, or
  /// none. `why`: of what the save of `step` failed.
  void end_if_too_old(Duration max_age, std::uint64_t step, const Failure& why);

 private:
  const Clock& clock_;
  Session& session_;
  JobWorld& world_;
  std::uint64_t step_ = never_saved;
  Instant safe_at_;
  std::uint64_t failed_ = 0, left_out_ = 0;  // saves of this generation
};

}  // namespace elrun::inline v0
