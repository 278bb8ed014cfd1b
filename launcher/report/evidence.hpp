#pragma once
/// \file Evidence: what the system says about the end of a process: was the kernel short of memory, is /dev/shm small.

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

/// As seen when a process ended.
struct Circumstances {
  std::uint64_t oom_kills = 0;                       ///< Since the process started, in its cgroup
  std::string oom_counter;                           ///< Where that is counted
  std::optional<std::uint64_t> memory_limit;         ///< Bytes, of the cgroup
  std::optional<std::uint64_t> shm_bytes, shm_free;  ///< Of /dev/shm
  std::string full_log_directory;                    ///< Where the process's own log files are, if nothing more can be written there
};
/// A sentence for people on why the process ended so; empty when nothing is known that its ending does not say.
[[nodiscard]] std::string evidence_of(const Ending& ending, const Circumstances& circumstances);

// --- shell --------------------------------------------------------------------------------------------------------

/// The text of a regular file of at most `most` bytes; nothing when it is none, is longer or cannot be read. Never waits,
/// whatever stands under the name.
[[nodiscard]] std::optional<std::string> read_regular_file(const Path& path, std::size_t most);

/// Counts the out-of-memory kills of this process's cgroup, which its workers share.
class MemoryWatch {
 public:
  explicit MemoryWatch(const Path& cgroup_root = "/sys/fs/cgroup", const Path& proc_self_cgroup = "/proc/self/cgroup");
  [[nodiscard]] std::uint64_t oom_kills() const;  ///< 0 where there is no counter
  /// `log_directory`: of the files that the process writes itself; empty: there are none.
  [[nodiscard]] Circumstances since(std::uint64_t oom_kills_before, const Path& log_directory) const;

 private:
  Path counter_;  // empty: there is no counter
};

}  // namespace elrun::inline v0::launcher
