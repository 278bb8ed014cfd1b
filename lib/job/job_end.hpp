#pragma once
/// \file JobEnd: how a job ends: with its last step, when the program returns before, and when this member's node leaves.

#include "lib/job/job_parts.hpp"
#include "lib/job/recover/generation_change.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread.
class JobEnd {
 public:
  /// All outlive it.
  JobEnd(JobParts& job, GenerationChange& change) : job_{job}, change_{change} {}

  /// All steps are done, or the program ended the job: saves, and makes the outcome.
  void finish();
  /// The program has returned. Throws Error where it may not have.
  void program_returned();
  /// A member whose node leaves takes no part in a step between the checkpoint that was made for it and the end of the generation: that step could be
  /// decided, and would be lost with this node's shards. The others wait for it meanwhile.
  void wait_until_left();

 private:
  void serve_to_the_end();
  void end_without_steps();

  JobParts& job_;
  GenerationChange& change_;
};

}  // namespace elrun::inline v0
