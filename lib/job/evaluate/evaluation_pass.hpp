#pragma once
/// \file EvaluationPass: all ranks of one world evaluate together, once. Newcomers compute nothing, but hold shards that others need: they serve.

#include <cstdint>
#include <functional>

#include <elrun/job.hpp>

#include "lib/job/job_parts.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread, on all ranks.
class EvaluationPass {
 public:
  /// Outlives it.
  explicit EvaluationPass(JobParts& job) : job_{job} {}

  /// `forward`: null for a newcomer that only serves the others. Not decided: the world is over.
  Evaluation run(std::uint64_t count, const std::function<void(Slot&)>* forward);

 private:
  bool run_slot(std::uint64_t count, std::uint32_t index, const std::function<void(Slot&)>& forward);

  JobParts& job_;
};

}  // namespace elrun::inline v0
