#pragma once
/// \file Child: one worker's process, leader of a session and process group of its own, watched by pidfd.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <elrun/units.hpp>

#include "launcher/options/options.hpp"
#include "launcher/process/guard.hpp"
#include "launcher/process/numa.hpp"
#include "launcher/report/endings.hpp"

namespace elrun::inline v0::launcher {

/// What is executed: nothing of it is looked up any more.
struct Execution {
  std::string path;
  std::vector<std::string> arguments;
  Variables environment;
  int out = -1, err = -1;  ///< Its standard output and error, borrowed until it is started; -1: it inherits them.
  Cpus cpus{};             ///< Where it may run; empty: wherever the agent may.
  int in = -1;             ///< Its standard input, borrowed as the others; -1: the agent's.
};

/// Lives on the loop. Its process is killed with its group by `release` or the destructor, and collected then, never
/// before: until its group has been killed it stays a zombie, so that its number is not another's.
class Child {
 public:
  /// Starts the process; `ended` is called on the loop, once, and may not destroy the child. A program that cannot be
  /// executed is a child that ended with 126 or 127, as under a shell. Fails only when the system has no room for a
  /// process.
  static Result<std::unique_ptr<Child>> start(boost::asio::io_context& loop, const Guard& guard, const Execution& execution,
                                              std::function<void(Ending)> ended);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int exec_error() const { return exec_error_; }  ///< errno of an exec that failed; 0: the program runs.
  /// `held` is called on the loop, once, when the process has ended and a debugger that traces it keeps its end from being
  /// told, for 2 s already: with the debugger's process number, 0 where that is not known.
  void on_held(std::function<void(pid_t tracer)> held) { held_ = std::move(held); }
  /// The process seems to be ending (ExitWatch). Where the kernel says that it was killed by SIGKILL, `ended` is called now, while its memory and
  /// devices may still be held. Any other end is told when it is gone: workers that end by themselves often do so together and for one reason,
  /// and the time until then lets all of them end in the same generation, which costs one restart.
  void expect_end();
  /// Nothing of the process is left but its number: its memory and devices are free.
  [[nodiscard]] bool is_gone() const { return is_gone_; }
  /// `gone` is called on the loop, once, when it is gone, after `ended`; it may not destroy the child.
  void on_gone(std::function<void()> gone) { gone_ = std::move(gone); }
  /// To the whole group.
  void signal(int number) const;
  /// Kills the group. `ended` is not called any more, and the destructor waits for nobody: for a process that may hang in the
  /// kernel, when this process is about to end too.
  void abandon();
  /// Kills the group and waits for its end, `wait` at most; then it is abandoned. True: it has ended.
  bool end_within(Duration wait);

 private:
  Child(boost::asio::io_context& loop, const Guard& guard, pid_t pid, int pidfd, int exec_error, std::function<void(Ending)> ended);
  void watch();
  void look_early();
  void tell(Ending ending);
  const Guard& guard_;
  pid_t pid_;
  int exec_error_;
  bool is_abandoned_ = false;
  boost::asio::posix::stream_descriptor watch_;
  boost::asio::steady_timer look_again_, early_look_;
  std::function<void(Ending)> ended_;  // none: it was called
  std::function<void()> gone_;
  std::function<void(pid_t)> held_;
  bool is_gone_ = false;
  int looks_ = 0;        // since it is held
  int early_looks_ = 0;  // since its end is expected
};

}  // namespace elrun::inline v0::launcher
