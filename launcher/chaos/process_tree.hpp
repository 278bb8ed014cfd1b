#pragma once
/// \file Shell: the processes below a launcher's process, and which of them are workers, by /proc.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/fd.hpp"

namespace elrun::inline v0::launcher {

/// A process that has RANK and a local rank in its environment, and whose parent has not.
struct WorkerProcess {
  pid_t pid = -1;
  std::uint32_t local_rank = 0;
  std::optional<std::uint32_t> nodes{};  ///< Of its job, as its launcher said when it started it (GROUP_WORLD_SIZE).
};

/// What is below a process, parents first, without itself.
[[nodiscard]] std::vector<pid_t> processes_below(pid_t pid);
/// As torchrun and elrun start them. Those that have ended are not among them, nor what they left behind.
[[nodiscard]] std::vector<WorkerProcess> workers_below(pid_t launcher);
/// Its name, as `ps` shows it; empty: there is no such process.
[[nodiscard]] std::string process_name(pid_t pid);
/// Whether this process itself listens at the TCP port, in its own network.
[[nodiscard]] bool listens_at(pid_t pid, std::uint16_t port);

/// A hold on that very worker: its number cannot become another's. Nothing where it has gone.
[[nodiscard]] Fd hold_worker(const WorkerProcess& worker);
/// False where it has ended.
bool signal_process(const Fd& process, int number);

}  // namespace elrun::inline v0::launcher
