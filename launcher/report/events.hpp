#pragma once
/// \file Events: what becomes of workers, as the lines of JSON that torchrun's event log has.

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/options/options.hpp"
#include "launcher/report/ledger.hpp"

namespace elrun::inline v0::launcher {

/// The same in all events of one agent.
struct EventSource {
  RunId run;
  std::string host;
  std::string role;
  std::string entry_point;  ///< The program
  std::string rdzv_backend;
};

/// One event: about a worker, or about the agent when there is none.
struct WorkerEvent {
  struct Worker {
    std::uint32_t rank = 0, local_rank = 0;
    std::int64_t pid = 0;
    std::optional<int> exit_code;  ///< Of a worker that failed, also after a job that succeeded was over; minus its signal
  };
  std::string state;  ///< RENDEZVOUS, ASSIGN_WORKER_RANKS, START, SUCCEEDED, FAILED, TERMINATED
  std::optional<Worker> worker;
  std::uint32_t group_rank = 0;
  std::uint32_t nodes = 1;
  std::uint32_t world_size = 1;
  std::uint32_t restarts = 0;  ///< Of this node's own workers, as TORCHELASTIC_RESTART_COUNT
  std::int64_t wall_ns = 0;
  Duration run_time{};  ///< Of the agent so far
  Duration took{};      ///< A rendezvous
  std::string error;    ///< Of what failed; may be empty
};

/// One line without newline.
[[nodiscard]] std::string event_line(const EventSource& source, const WorkerEvent& event);
/// Where a job's time went, at its end: a line that torchrun's log has not.
[[nodiscard]] std::string event_line(const EventSource& source, const Ledger& ledger, std::int64_t wall_ns);

}  // namespace elrun::inline v0::launcher
