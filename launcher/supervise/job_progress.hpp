#pragma once
/// \file JobProgress: the job over all its generations, as far as this node knows it. Pure.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <elrun/session.hpp>

#include "checkpoint/format/records.hpp"
#include "launcher/supervise/checkpoint_failures.hpp"
#include "launcher/supervise/losses.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0::launcher {

/// Whether the program is a Job and whether it is over, what workers that start again are told of it, from which checkpoint it went on last, how often
/// this node ended a generation, and how long the job takes to recover. Nothing of it is forgotten when a generation ends.
class JobProgress {
 public:
  /// The members decided the end, or the coordinator said so.
  void finish() { is_over_ = true; }
  [[nodiscard]] bool is_over() const { return is_over_; }
  /// A worker of this node was a Job's, or the coordinator said so of others.
  void know_as_job() { is_job_ = true; }
  [[nodiscard]] bool is_job() const { return is_job_; }

  void step_decided(StepProgress step) {
    if (step.decided == newest_step_.decided) {  // said again by a worker that waits for the storage: what it leaves out is known
      if (step.steps == 0) step.steps = newest_step_.steps;
      if (!step.loss) step.loss = newest_step_.loss;
    }
    newest_step_ = step;
    remembered_.decided = std::max(remembered_.decided, step.decided.value());
    failures_.decided(step.decided.value());
  }
  /// What a worker of this node said last of a step.
  [[nodiscard]] const StepProgress& newest_step() const { return newest_step_; }
  /// Workers of this node decided a step, in whatever generation.
  [[nodiscard]] bool has_trained() const { return remembered_.decided > 0; }
  void begin_generation(std::uint64_t number) { failures_.begin_generation(number); }
  void went_on_from(Restoration from) {
    failures_.went_on_from(from.checkpoint, from.step);
    restoration_ = std::move(from);
  }
  /// The newest; nothing when the job has never looked for a checkpoint.
  [[nodiscard]] const std::optional<Restoration>& restoration() const { return restoration_; }
  /// A worker of this node ended the generation.
  void worker_failed(const Ending& ending, const std::string& error = {}) { failures_.failed(ending, error); }
  /// A leader that was frozen tells late of a checkpoint that is older than what this node knows.
  void checkpoint_saved(std::string acknowledgement) {
    if (!was_acknowledged_before(acknowledgement, remembered_.checkpoint)) remembered_.checkpoint = std::move(acknowledgement);
  }
  [[nodiscard]] Session::Remembered remembered() const {
    Session::Remembered all = remembered_;
    all.failures = failures_.all();
    return all;
  }

  void count_restart() { ++node_restarts_; }
  /// How often a worker of this node ended a generation.
  [[nodiscard]] std::uint32_t node_restarts() const { return node_restarts_; }
  [[nodiscard]] RecoveryTime& recovery() { return recovery_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  bool is_over_ = false;
  bool is_job_ = false;
  std::uint32_t node_restarts_ = 0;
  Session::Remembered remembered_;  // but for the failures
  StepProgress newest_step_;
  CheckpointFailures failures_;
  std::optional<Restoration> restoration_;
  RecoveryTime recovery_;
};

}  // namespace elrun::inline v0::launcher
