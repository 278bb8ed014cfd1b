#pragma once
/// \file Child: one worker's process, leader of a session and process group of its own, watched by pidfd.

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <elrun/units.hpp>

#include "launcher/process/guard.hpp"
#include "launcher/process/spawner.hpp"
#include "launcher/report/endings.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the loop. Its process is killed with its group by `release` or the destructor, and collected then, never
/// before: until its group has been killed it stays a zombie, so that its number is not another's.
class Child {
 public:
  /// Starts the process; `ended` is called on the loop, once, and may not destroy the child. A program that cannot be
  /// executed is a child that ended with 126 or 127, as under a shell. So is one whose exec has not returned within `exec_limit`, for the storage of the program does not
  /// answer; it is killed then, and `ended` is called whether it can end or not. Fails only when the system has no room for a process.
  static Result<std::unique_ptr<Child>> start(boost::asio::io_context& loop, const Guard& guard, const Execution& execution,
                                              std::function<void(Ending)> ended);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Why the program was not executed, in words, once `ended` is called; empty: it was.
  [[nodiscard]] const std::string& never_ran() const { return never_ran_; }
  /// The exec has not returned yet.
  [[nodiscard]] bool is_executing() const { return exec_ != nullptr; }
  /// `late` is called on the loop, once, when the exec has not returned in 5 s, with its limit.
  void on_late_exec(std::function<void(Duration limit)> late) { exec_is_late_ = std::move(late); }
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
  /// To the whole group. While `is_executing`, SIGKILL in place of a signal that makes a process dump its core.
  void signal(int number) const;
  /// Kills the group. `ended` is not called any more, and the destructor waits for nobody: for a process that may hang in the
  /// kernel, when this process is about to end too.
  void abandon();
  /// Kills the group and waits for its end, `wait` at most; then it is abandoned. True: it has ended.
  bool end_within(Duration wait);

 private:
  Child(boost::asio::io_context& loop, const Guard& guard, const Execution& execution, Spawned spawned, int pidfd,
        std::function<void(Ending)> ended);
  void watch();
  void learn_exec();
  void exec_is_over(int error);
  void look_at_exec(Duration after, Duration limit);
  void give_up_exec(Duration limit);
  [[nodiscard]] bool ends_within(Duration wait);
  void look_early();
  void tell(Ending ending);
  const Guard& guard_;
  pid_t pid_;
  std::string path_, never_ran_;
  bool is_abandoned_ = false;
  boost::asio::posix::stream_descriptor watch_;
  boost::asio::steady_timer look_again_, early_look_;
  std::shared_ptr<ExecState> exec_;  // none: the exec is over
  boost::asio::posix::stream_descriptor exec_line_;
  boost::asio::steady_timer exec_timer_;
  bool exec_is_told_ = false;  // as late
  std::function<void(Duration)> exec_is_late_;
  std::function<void(Ending)> ended_;  // none: it was called
  std::function<void()> gone_;
  std::function<void(pid_t)> held_;
  bool is_gone_ = false;
  int looks_ = 0;        // since it is held
  int early_looks_ = 0;  // since its end is expected
};

}  // namespace elrun::inline v0::launcher
