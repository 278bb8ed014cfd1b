#pragma once
/// \file Evaluations that the program asks for. One that is called between two steps is decided by all members or by none: what follows from it in the program is part of the
/// bits. Where the world is lost in it, the survivors meet in the next generation, still in this call. Whoever knows the result tells it;
/// where nobody does, they compute it again. Newcomers serve until it is decided (evaluation_pass.hpp).

#include <cstdint>
#include <functional>

#include <elrun/job.hpp>

#include "lib/job/evaluate/evaluation_pass.hpp"
#include "lib/job/job_parts.hpp"
#include "lib/job/recover/generation_change.hpp"
#include "lib/job/recover/parameter_comparison.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread.
class Evaluations {
 public:
  /// All outlive it.
  Evaluations(JobParts& job, EvaluationPass& pass, GenerationChange& change, ParameterComparison& comparison)
      : job_{job}, pass_{pass}, change_{change}, comparison_{comparison} {}

  /// As Job::evaluate says.
  Evaluation evaluate(std::uint64_t count, const std::function<void(Slot&)>& forward);

 private:
  JobParts& job_;
  EvaluationPass& pass_;
  GenerationChange& change_;
  ParameterComparison& comparison_;
};

}  // namespace elrun::inline v0
