#pragma once
/// \file Guard: a small process that ends the workers when the agent dies without doing so itself.

#include <sys/types.h>

#include <elrun/result.hpp>

#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0::launcher {

/// A forked child at the other end of a line. It learns which process groups live; when the line ends,
/// however the agent died, it kills those that are left with SIGKILL, removes the agent's directory, and is gone
/// itself.
class Guard {
 public:
  /// Forks. Call before any thread exists and before gRPC is touched. `directory` holds the agent's socket.
  static Result<Guard> start(const Path& directory);
  Guard(Guard&&) = default;
  Guard& operator=(Guard&&) = default;
  /// The orderly end: closes the line and collects the guard, which has nothing to do any more; waits a second at most.
  ~Guard();

  /// Where a worker registers itself, between its birth and its exec, so that no moment is left in which it is unknown.
  [[nodiscard]] int line() const { return line_.get(); }
  /// The guard's process: when it ends before the agent, workers would outlive a killed agent.
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// The group has been killed: its number may soon be another's.
  void forget(pid_t group) const;

 private:
  Guard(Fd line, pid_t pid) : line_{std::move(line)}, pid_{pid} {}
  Fd line_;
  pid_t pid_ = -1;
};

/// In the child of a vfork: tells the guard that this process leads a group. Async-signal-safe.
void register_with_guard(int line) noexcept;

}  // namespace elrun::inline v0::launcher
