#pragma once
/// \file Guard: a small process that ends the workers when the agent dies without doing so itself.

#include <sys/types.h>

#include <elrun/result.hpp>

#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0::launcher {

/// A forked child that holds the reading end of a pipe. It learns which process groups live; when the pipe ends,
/// however the agent died, it kills those that are left with SIGKILL, removes the agent's directory, and is gone
/// itself.
class Guard {
 public:
  /// Forks. Call before any thread exists and before gRPC is touched. `directory` holds the agent's socket.
  static Result<Guard> start(const Path& directory);
  Guard(Guard&&) = default;
  Guard& operator=(Guard&&) = default;
  /// The orderly end: closes the pipe and collects the guard, which has nothing to do any more; waits a second at most.
  ~Guard();

  /// Where a worker registers itself, between its birth and its exec, so that no moment is left in which it is unknown.
  [[nodiscard]] int pipe() const { return pipe_.get(); }
  /// The group has been killed: its number may soon be another's.
  void forget(pid_t group) const;

 private:
  Guard(Fd pipe, pid_t pid) : pipe_{std::move(pipe)}, pid_{pid} {}
  Fd pipe_;
  pid_t pid_ = -1;
};

/// In the child of a vfork: tells the guard that this process leads a group. Async-signal-safe.
void register_with_guard(int pipe) noexcept;

}  // namespace elrun::inline v0::launcher
