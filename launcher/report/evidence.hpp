#pragma once
/// \file Evidence: what the system says about the end of a process, or about one that could not be started: which limit was reached.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/report/endings.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0::launcher {

// --- pure ---------------------------------------------------------------------------------------------------------

/// Where a process's cgroup counts its out-of-memory kills, the most specific file first: of /proc/self/cgroup's text and
/// of where the cgroups are mounted.
[[nodiscard]] std::vector<Path> memory_event_files(std::string_view proc_self_cgroup, const Path& cgroup_root);
/// `oom_kill N` of memory.events (version 2) or memory.oom_control (version 1).
[[nodiscard]] std::optional<std::uint64_t> oom_kills_of(std::string_view text);

/// Where it counts the processes and threads that were refused for its limit (pids.max), likewise.
[[nodiscard]] std::vector<Path> pids_event_files(std::string_view proc_self_cgroup, const Path& cgroup_root);
/// `max N` of pids.events.
[[nodiscard]] std::optional<std::uint64_t> refusals_of(std::string_view text);

/// As seen when a process ended.
struct SystemEvidence {
  std::uint64_t oom_kills = 0;                       ///< Since the process started, in its cgroup
  std::string oom_counter;                           ///< Where that is counted
  std::uint64_t refusals = 0;                        ///< Of processes and threads, since then, in its cgroup
  std::string refusal_counter;                       ///< Where that is counted
  std::optional<std::uint64_t> pids_limit;           ///< Processes and threads, of that cgroup
  std::optional<std::uint64_t> memory_limit;         ///< Bytes, of the cgroup
  std::optional<std::uint64_t> shm_bytes, shm_free;  ///< Of /dev/shm
  std::string full_log_directory;                    ///< Where the process's own log files are, if nothing more can be written there
};
/// A sentence for people on why the process ended so; empty when nothing is known that its ending does not say.
[[nodiscard]] std::string evidence_of(const Ending& ending, const SystemEvidence& evidence);

/// What may be reached when a system call fails. Nothing: there is no such limit, or it is not known.
struct Limits {
  std::optional<std::uint64_t> pids, pids_used;      ///< Processes and threads, of the cgroup
  std::optional<std::uint64_t> memory, memory_used;  ///< Bytes, of the cgroup
  std::optional<std::uint64_t> processes;            ///< And threads, of this user (ulimit -u)
  std::optional<std::uint64_t> descriptors;          ///< Of this process (ulimit -n)
};
/// A sentence for people on the limit that made a system call fail with `error` (an errno), and its remedy; empty when none of them explains it.
[[nodiscard]] std::string limit_behind(int error, const Limits& limits);

// --- shell --------------------------------------------------------------------------------------------------------

/// The text of a regular file of at most `most` bytes; nothing when it is none, is longer or cannot be read. Never waits,
/// whatever stands under the name.
[[nodiscard]] std::optional<std::string> read_regular_file(const Path& path, std::size_t most);

/// What this process's cgroup, which its workers share, has counted. 0 where there is no counter.
struct CgroupCounts {
  std::uint64_t oom_kills = 0, refusals = 0;
};

/// Counts the out-of-memory kills, and the refused processes and threads, of this process's cgroup.
class CgroupWatch {
 public:
  explicit CgroupWatch(const Path& cgroup_root = "/sys/fs/cgroup", const Path& proc_self_cgroup = "/proc/self/cgroup");
  [[nodiscard]] CgroupCounts counts() const;
  /// `log_directory`: of the files that the process writes itself; empty: there are none.
  [[nodiscard]] SystemEvidence since(const CgroupCounts& before, const Path& log_directory) const;
  [[nodiscard]] Limits limits() const;

 private:
  Path memory_, pids_;  // the counters; empty: there is none
};

}  // namespace elrun::inline v0::launcher
