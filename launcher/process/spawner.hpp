#pragma once
/// \file spawn_process: vfork and exec on a thread of their own, so that a program whose storage does not answer holds up its own worker alone.

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "launcher/options/options.hpp"
#include "launcher/process/guard.hpp"
#include "launcher/process/numa.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/timed_files.hpp"

namespace elrun::inline v0::launcher {

/// What is executed: nothing of it is looked up any more.
struct Execution {
  std::string path;
  std::vector<std::string> arguments;
  Variables environment;
  int out = -1, err = -1;                           ///< Its standard output and error, borrowed until it is started; -1: it inherits them.
  Cpus cpus{};                                      ///< Where it may run; empty: wherever the agent may.
  int in = -1;                                      ///< Its standard input, borrowed as the others; -1: the agent's.
  Duration exec_limit = StorageLimits{}.operation;  ///< An exec that has not returned within this has failed.
};

/// Whether a process's exec is over, between the loop and the thread that makes it.
class ExecState {
 public:
  /// Nobody else will collect the process: the thread does when its exec returns, and tells the guard. Until then `is_left` knows it. False: it has returned, and that is
  /// still to be done.
  [[nodiscard]] bool leave(pid_t pid);

 private:
  friend class Spawner;
  std::mutex mutex_;
  bool is_over_ = false, is_left_ = false;
};

struct Spawned {
  pid_t pid = -1;      ///< Leads a session and a group, and is known to the guard.
  int exec_error = 0;  ///< errno of an exec that failed; 0: the program runs, or nobody knows yet.
  /// Not over yet: the exec takes its time. Then an `int` comes by the line when it is: its errno, or 0.
  std::shared_ptr<ExecState> exec;
  Fd exec_line;
};

/// Starts a process, whose parent is a thread that ends with this process alone, for the kernel kills the process when that thread ends (PR_SET_PDEATHSIG). Waits for the
/// exec for 100 ms, and for 2 ms while another one takes its time. Fails when the system has no room for a process or a thread. Use from one thread.
[[nodiscard]] Result<Spawned> spawn_process(const Guard& guard, const Execution& execution);

/// What an exec that is over has said by its line: 0 or its errno. Nothing: it is not over. Never waits.
[[nodiscard]] std::optional<int> exec_result(int exec_line);

/// A child process whose exec still hung when it was left (`ExecState::leave`), and which is not collected yet: that is its thread's to do. From any thread.
[[nodiscard]] bool is_left(pid_t pid);

}  // namespace elrun::inline v0::launcher
