#pragma once
/// \file Guard: a small process that ends the workers when the agent dies without doing so itself.

#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>

#include <elrun/result.hpp>

#include "launcher/process/agent_directory.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0::launcher {

constexpr std::size_t death_notice_max = 8192;  ///< Bytes

/// A forked child at the other end of a line. It learns which process groups live; when the line ends,
/// however the agent died, it kills those that are left with SIGKILL, sends the agent's death notice, removes the agent's directory, and is gone
/// itself.
class Guard {
 public:
  /// Sends a death notice, in the guard's process: it has one thread, and may use gRPC. It ends within seconds.
  using Say = std::function<void(ByteSpan death_notice)>;
  /// Forks. Call before any thread exists and before gRPC is touched. The guard makes the agent's directory itself: there is
  /// no moment in which a killed agent leaves one behind.
  static Result<Guard> start(const Variables& environment, Say say = {});
  Guard(Guard&&) = default;
  Guard& operator=(Guard&&) = default;
  /// The orderly end: closes the line and collects the guard, which removes the directory; waits a second at most. Where it does not read and would not hear which groups have gone, it is killed, and the
  /// directory removed here.
  ~Guard();

  /// Where a worker registers itself, between its birth and its exec, so that no moment is left in which it is unknown.
  [[nodiscard]] int line() const { return line_.get(); }
  /// The agent's directory, which holds its socket; of mode 0700.
  [[nodiscard]] const Path& directory() const { return directory_; }
  /// The guard's process: when it ends before the agent, workers would outlive a killed agent.
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Whether its line has room for a new worker, who writes to it before its exec and would wait for a guard that reads nothing, as the agent would for its number. Waits for a
  /// second at most, and not again until there is room. What was registered before has room to be forgotten.
  [[nodiscard]] bool has_room() const;
  /// Waits for the end of `child`, whose group has been killed, and collects it once the guard is told that its number may soon be another's. Where the line has no room for that, it
  /// stays a zombie (`keeps`) until a later call of this object finds room: this one does not wait for the guard.
  void collect(pid_t child) const;
  /// A child that has ended, and is collected here, later.
  [[nodiscard]] bool keeps(pid_t child) const;
  /// What is said when the line ends, instead of what it was before; empty: nothing. At most `death_notice_max` bytes. Never waits: where the guard does not
  /// read, the one before holds until a later call of this object finds room.
  void set_death_notice(ByteSpan death_notice) const;

 private:
  Guard(Fd line, pid_t pid, Path directory) : line_{std::move(line)}, pid_{pid}, directory_{std::move(directory)} {}
  /// As far as the line has room. True: all is said.
  bool say_what_waits() const;
  Fd line_;
  pid_t pid_ = -1;
  Path directory_;
  mutable bool was_full_ = false;
  mutable std::set<pid_t> ended_;  // not collected: the guard does not know yet
  mutable std::optional<ByteVector> unsaid_notice_;
};

/// The group has been killed and collected, on another thread that may outlive the guard's object. Waits for a guard that does not read.
void forget_in_guard(int line, pid_t group) noexcept;

/// In the child of a vfork: tells the guard that this process leads a group. Async-signal-safe.
void register_with_guard(int line) noexcept;

}  // namespace elrun::inline v0::launcher
