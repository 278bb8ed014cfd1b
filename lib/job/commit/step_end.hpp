#pragma once
/// \file StepEnd: from the last slot to the update: gradients are reduced, all members vote, and what is decided is applied. Nothing that `apply` does before the decision touches the
/// state, and after it nothing stops it.

#include <elrun/job.hpp>
#include <elrun/result.hpp>

#include "lib/job/job_parts.hpp"
#include "lib/job/recover/generation_change.hpp"
#include "lib/job/recover/parameter_comparison.hpp"
#include "lib/job/slot_loop.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread.
class StepEnd {
 public:
  /// All outlive it.
  StepEnd(JobParts& job, SlotLoop& slots, GenerationChange& change, ParameterComparison& comparison)
      : job_{job}, slots_{slots}, change_{change}, comparison_{comparison} {}

  /// As Step::apply says.
  StepResult apply(const AnyOptimizer& optimizer, const ApplyOptions& options);
  /// As Step::audit says.
  void audit(double probability);

 private:
  void check(const AnyOptimizer& optimizer, const ApplyOptions& wanted, const UpdateOptions& options) const;
  bool reduce_and_vote();
  Result<void> exchange_votes(const Vote& mine);
  Result<void> audit_agrees();
  void tell_of_stragglers();
  /// Of a step that is decided.
  [[nodiscard]] StepResult decided(StepResult result) const;

  JobParts& job_;
  SlotLoop& slots_;
  GenerationChange& change_;
  ParameterComparison& comparison_;
};

}  // namespace elrun::inline v0
