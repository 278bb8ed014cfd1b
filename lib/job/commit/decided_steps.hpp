#pragma once
/// \file DecidedSteps: which steps are decided, as one member knows it, and what the last of them came to. Core, called by the job's thread.
///
/// StepCommit (commit.hpp) counts the votes for the step at hand. Around it are what goes with a decided step: the decision's values, with what
/// the update was made, whether the job ends with it, its loss, the steps that were skipped, and the evaluations that followed it.
///
/// What always holds:
/// * `decision()` is of step `decision().count`; where that is `knowledge().decided`, the votes' values of the newest step are known here.
/// * `evaluations()` counts those decided since the last step was applied here, and `evaluation()` is what the last of them came to.
/// * A step that is revoked leaves nothing behind but what `UpdateMemory` remembers of its first try.

#include <cstdint>
#include <optional>
#include <string>

#include "lib/job/commit/commit.hpp"
#include "lib/job/commit/decision.hpp"
#include "lib/job/commit/stop_request.hpp"
#include "lib/job/commit/update_record.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/state/host_state.hpp"

namespace elrun::inline v0 {

/// More than 25 methods, because each thing that goes with a decided step changes at the same few moments, which are the methods here.
class DecidedSteps {
 public:
  [[nodiscard]] const Knowledge& knowledge() const { return commit_.knowledge(); }
  /// Steps that are in the state.
  [[nodiscard]] std::uint64_t applied() const { return knowledge().applied; }
  [[nodiscard]] const Decision& decision() const { return decision_; }
  /// Of the last decided step.
  [[nodiscard]] float loss() const { return loss_; }
  /// Decided steps that updated nothing.
  [[nodiscard]] std::uint64_t skipped() const { return skipped_; }
  [[nodiscard]] const UpdateRecord& updates() const { return updates_; }
  /// Outlives one run of the program in this process.
  [[nodiscard]] UpdateMemory& memory() { return updates_.memory(); }

  // ---- one step: handed out, then revoked, or voted for, decided and applied

  void hand_out() { stop_.keep(); }
  /// The program does it again, and asks for the job's end again.
  void revoke() { stop_.put_back(); }
  void ask_to_stop() { stop_.ask(); }
  [[nodiscard]] bool asks_to_stop() const { return stop_.is_asked(); }
  /// A decided step was the last one.
  [[nodiscard]] bool ends() const { return stop_.is_decided(); }
  /// What the program passed to `apply`. `binds`: see UpdateRecord.
  void pass(const AnyOptimizer& optimizer, const UpdateOptions& options, bool binds) {
    updates_.pass(applied(), optimizer, options, binds);
  }
  /// This member's vote, with what was passed. `finite`: see Vote.
  [[nodiscard]] Vote vote(bool finite);
  /// After a vote; see UpdateRecord.
  [[nodiscard]] std::optional<std::string> take_doubt() { return updates_.take_doubt(applied()); }
  /// What the vote says of the update.
  [[nodiscard]] UpdateReport report() const { return updates_.report(applied()); }
  /// False: the vote does not belong here; see StepCommit.
  [[nodiscard]] bool hear(Rank from, const Vote& vote) { return commit_.hear(from, vote); }
  /// What all members' votes came to.
  struct Votes {
    float squares = 0;  ///< As the members of Decision.
    float loss = 0;
    std::uint64_t tokens = 0;
    bool stops = false;
  };
  /// All votes were heard: the step is decided.
  void decide(const Votes& votes);
  /// The decided step is in the state.
  void apply();

  // ---- from one generation to the next

  /// The step for which this member voted is decided, in generation `in`. `decision`: what the votes came to.
  void learn(std::uint64_t decided, const Generation& in, const Decision& decision);
  void begin_generation(const Membership& me);
  /// The state is that of another member that applied `applied` steps, the last of them decided in `in`.
  void go_on_at(const Membership& me, std::uint64_t applied, const Generation& in);
  /// And that is what it knows of the last decision.
  void take_decision(const Decision& decision);
  /// From the beginning; or from a checkpoint, which `load` says then.
  void begin_anew(const Membership& me);
  /// The program runs again in this process, with the state of the run before. `revoked`: that run had a step that was not decided.
  void continue_from(const DecidedSteps& before, bool revoked);

  // ---- as host state. `steps`: of the plan

  [[nodiscard]] JobProgress progress(std::uint64_t steps) const;
  void load(const JobProgress& progress, const Membership& me, std::uint64_t steps);
  /// What was loaded is a checkpoint's: the first vote after it is doubted if it looks as if a variable began anew.
  void doubt_next_update() { updates_.set_from_checkpoint(true); }

  // ---- evaluations between two steps

  void remember(const Evaluation& evaluation);
  [[nodiscard]] std::uint64_t evaluations() const { return evaluations_; }
  /// Encoded; empty: there is none.
  [[nodiscard]] const ByteVector& evaluation() const { return evaluation_; }

 private:
  void forget_evaluations();
  StepCommit commit_;
  Decision decision_;
  UpdateRecord updates_;
  StopRequest stop_;
  float loss_ = 0;
  std::uint64_t skipped_ = 0;
  std::uint64_t evaluations_ = 0;
  ByteVector evaluation_;
};

}  // namespace elrun::inline v0
