#pragma once
/// \file FailureReport: why a job failed, in the forms that people and programs look for: torchrun's box, a line of JSON,
/// an exit code.

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/options/options.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

constexpr std::size_t termination_message_max = 4096;  ///< What Kubernetes keeps of /dev/termination-log

/// All that the reports are made of.
struct FailedJob {
  RunId run;
  NodeId node;                      ///< That reports
  int exit_code = 0;                ///< The job's, by elrun's own rules
  int returned = 0;                 ///< What this process returns
  std::string cause;                ///< A sentence; empty when the exit code says it all
  std::vector<WorkerDeath> deaths;  ///< The root cause first; empty when no worker decided it
  std::int64_t wall_ns = 0;
  std::string went_on_from{};    ///< The checkpoint that the job went on from last; empty: it never did.
  bool words_are_above = false;  ///< The root cause's last lines stand in this log just above, and are not said again.
};

/// What the process returns for the job's exit code: with torchrun's codes every failure is 1.
[[nodiscard]] int returned_exit_code(ExitCodes codes, int exit_code);

/// Whose exit code it is: the program's, or elrun's own (it could not start the program, or was itself asked to end).
[[nodiscard]] bool is_of_program(const FailedJob& job);
/// Of a worker that its node tells of before its end: where it runs, and what. Changes nothing of one that has ended.
void complete_living(WorkerDeath& death, const std::string& host, const std::string& program);

/// The parts and labels that users of torchrun, and what reads their logs, know: the program's name, the failures after the
/// first, the first. Lines without a leading newline, with one at the end. Empty when no worker failed.
[[nodiscard]] std::string failure_box(const FailedJob& job);

/// For every node's log: the first failure and its meaning.
[[nodiscard]] std::string short_report(const FailedJob& job);

/// For the log of the coordinator's node: the first failure and its meaning, then the box.
[[nodiscard]] std::string box_report(const FailedJob& job);

/// One line of JSON without newline. Longer texts give way to `most` bytes from their beginning on: the end tells more.
[[nodiscard]] std::string failure_json(const FailedJob& job, std::size_t most);

/// "2026-11-21T20:45:16.123Z"
[[nodiscard]] std::string utc_time(std::int64_t wall_ns);

}  // namespace elrun::inline v0::launcher
