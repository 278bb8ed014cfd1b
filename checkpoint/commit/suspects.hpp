#pragma once
/// \file Core: after which checkpoints a job failed the same way twice.
///
/// A state can be spoiled before it is saved: by memory that flips a bit, or by a step that makes a NaN. Then each start from that checkpoint fails alike,
/// and an older one may be the way out. Agents remember the failures (launcher/supervise/checkpoint_failures.hpp); a job asks all of them, for
/// it need not be the same node on which a worker fails first. What the job does about a suspect, `decide` says (resume.hpp).

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/commit/resume.hpp"
#include "checkpoint/format/names.hpp"

namespace elrun::inline v0 {

/// A worker failed by itself in a generation that went on from this checkpoint.
struct FailedAfter {
  CheckpointId id;
  std::uint64_t generation = 0;
  std::uint64_t step = 0;  ///< Steps that were done by then. The word of the last one may have been lost with the worker.
  std::string how;         ///< "exit code 3"
  std::string node;        ///< Of the worker.
};

/// Checkpoints from which two generations went on that failed alike: in the same way, after the same step or one beside it. One line says how, for people.
/// Failures in the same way after two different checkpoints, and before any step was decided, do not count: what fails every start is something else than a state, such as a
/// data set that cannot be read.
[[nodiscard]] std::vector<Suspect> suspects(std::vector<FailedAfter> failures);

}  // namespace elrun::inline v0
