#pragma once
/// \file ParameterComparison: after the world changed, whether all ranks that hold the same parameters hold the same bits.

#include <cstdint>

#include <elrun/result.hpp>

#include "lib/job/job_parts.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread, on all ranks. A difference throws Error (`mismatch`) on all.
class ParameterComparison {
 public:
  /// Outlives it.
  explicit ParameterComparison(JobParts& job) : job_{job} {}

  /// A rank that made its parameters, or got them, may have other ones: then all compare all of them. Where all members go on with their own, a sample is enough. Before
  /// the job's first step, or without a state of members or an in-memory checkpoint, they compare at once, and what programs wrote, too. Else there is nothing that a program may still write: the hash is
  /// made while the slots of the next step compute, and goes with the votes for it (`with_votes`: there is such a step, and nothing keeps the state before it).
  void begin(bool with_votes);
  /// In a step: what follows from an evaluation is printed before the votes are heard. False: the world is over.
  [[nodiscard]] bool before_evaluation();
  /// The hash that goes with this member's vote; 0 where none does. Waits for it. Fails where the world is over meanwhile.
  [[nodiscard]] Result<std::uint64_t> for_vote();
  /// With the votes of all, by rank: throws Error where they differ. Nothing where none went with them.
  void hear_votes(std::uint64_t step);

 private:
  void compare_now();

  JobParts& job_;
};

}  // namespace elrun::inline v0
