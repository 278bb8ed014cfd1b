#pragma once
/// \file OpenStep: the step that the program has from `next_step()` on, and how far it is with it. Core, called by the job's thread.
///
/// What a call makes of the step's stage; what is not listed leaves it:
///
/// | call         | none      | open      | undecided | what happened                                                                 |
/// |--------------|-----------|-----------|-----------|-------------------------------------------------------------------------------|
/// | `begin`      | open      | open      | open      | `next_step()` hands a step out                                                |
/// | `close`      |           | undecided |           | `apply()` was called: no more slots                                           |
/// | `decide`     | none      | none      | none      | `apply()` returns with the step decided                                       |
/// | `revoke`     | none      | none      | none      | another generation: the step is done again, and host state put back          |
/// | `go_back`    | undecided |           |           | the state is a checkpoint's now: host state is that state's when the next step begins, whatever the program does until then |
///
/// `slots()` and its loop come once per step. Slots are counted in the order in which this rank runs its own.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <elrun/units.hpp>

#include "lib/job/commit/step_audit.hpp"

namespace elrun::inline v0 {

/// The slots of an evaluation that this rank runs, in order.
struct EvaluationSlots {
  std::uint64_t count = 0;  ///< Samples of the whole evaluation.
  std::vector<std::uint32_t> slots;
  std::size_t taken = 0;  ///< The program had so many, or has the last of them.
};

class OpenStep {
 public:
  /// `next_step()` was called, ever: also by a run of the program before this one in its process.
  void ask() { asked_for_ = true; }
  [[nodiscard]] bool was_asked_for() const { return asked_for_; }
  void begin(Instant now);
  void close();
  void decide() { stage_ = Stage::none; }
  /// True: it was not decided, so what the program changed is to be put back.
  [[nodiscard]] bool revoke();
  void go_back();

  /// Slots may be run, and `apply` called.
  [[nodiscard]] bool is_open() const { return stage_ == Stage::open; }
  /// It was handed out, and is neither decided nor revoked.
  [[nodiscard]] bool is_undecided() const { return stage_ != Stage::none; }
  /// When it was handed out.
  [[nodiscard]] Instant begun() const { return begun_; }

  /// The program called `slots()`, and began its loop. Throws Error the second time; `take_slots` also where no step is open and none was lost:
  /// `world_over` says that one may have been.
  void take_slots(bool world_over);
  void begin_loop();
  /// This rank's slot that is next, or open.
  [[nodiscard]] std::size_t slot() const { return slot_; }
  /// The same; none: what is open is another rank's slot, for the audit alone.
  [[nodiscard]] std::optional<std::size_t> own_slot() const { return audit_.is_running() ? std::nullopt : std::optional{slot_}; }
  void end_slot() { ++slot_; }

  [[nodiscard]] StepAudit& audit() { return audit_; }
  [[nodiscard]] const StepAudit& audit() const { return audit_; }

  /// The slots that the program gets are those of an evaluation, in a step or between two.
  void begin_evaluation(std::uint64_t count, std::vector<std::uint32_t> slots) { evaluation_ = {count, std::move(slots), 0}; }
  void take_evaluation_slot() { ++evaluation_->taken; }
  void end_evaluation() { evaluation_.reset(); }
  /// An exception came out of one of them. What the other ranks are in is not known; until the next step or world.
  void leave_evaluation() { left_evaluation_ = true; }
  [[nodiscard]] bool has_left_evaluation() const { return left_evaluation_; }
  [[nodiscard]] bool is_evaluating() const { return evaluation_.has_value(); }
  [[nodiscard]] const std::optional<EvaluationSlots>& evaluation() const { return evaluation_; }
  /// An evaluation in this step was undecided, for the world was lost. Until the step is handed out again.
  void lose_evaluation() { lost_evaluation_ = true; }
  [[nodiscard]] bool lost_evaluation() const { return lost_evaluation_; }

 private:
  enum class Stage : std::uint8_t { none, open, undecided };
  enum class Loop : std::uint8_t { untaken, taken, begun };
  void reset();
  Stage stage_ = Stage::none;
  Loop loop_ = Loop::untaken;
  std::size_t slot_ = 0;
  bool asked_for_ = false;  // over all steps
  bool lost_evaluation_ = false, left_evaluation_ = false;
  std::optional<EvaluationSlots> evaluation_;
  Instant begun_{};
  StepAudit audit_;
};

}  // namespace elrun::inline v0
