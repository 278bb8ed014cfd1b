#pragma once
/// \file StackTools: runs the tool that prints a hung worker's stacks, one worker after the other, never beyond a bound.

#include <sys/types.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "launcher/options/options.hpp"
#include "launcher/process/child.hpp"
#include "launcher/process/guard.hpp"
#include "launcher/process/stacks.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the loop. A tool holds the process that it looks at (ptrace): while it does, signals wait and a dead worker
/// cannot be collected. So each tool has a deadline, only one runs at a time, and the end of a worker ends its tool first.
/// Nothing here waits: a tool that was killed and hangs in the kernel is left to the guard.
class StackTools {
 public:
  struct Setting {
    Path directory;                                   ///< Holds the tools' output; the agent's own.
    const Variables& environment;                     ///< PATH says where the tools are.
    Duration limit{};                                 ///< After `take`, a worker's stacks are there within this, or given up.
    bool are_likely = true;                           ///< False: tools are not looked up before the first `take`.
    Duration exec_limit = StorageLimits{}.operation;  ///< As Execution's, of a tool.
  };
  /// Looks the tools up (`find_stack_programs`) where it is likely that they are needed, which takes 2.5 s at most.
  StackTools(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, const Log& log, Setting setting);
  ~StackTools();
  StackTools(const StackTools&) = delete;
  StackTools& operator=(const StackTools&) = delete;

  /// Logs what the threads of this worker are doing: what /proc says now, and what a tool says when it is done. Looks the tools up
  /// where that was not done yet, as the constructor.
  void take(LocalRank worker, pid_t process);
  /// The worker is about to get a signal: a tool that holds it is killed, and what it has said so far is logged.
  void let_go(LocalRank worker);
  [[nodiscard]] bool is_tool(pid_t process) const;

 private:
  struct Waiting {
    LocalRank worker;
    std::vector<std::string> command;
    Instant until;
  };
  struct Running {
    LocalRank worker;
    std::string name;
    Path output;
    Instant began;
    std::unique_ptr<Child> tool;
    std::uint64_t number;
  };
  void start_next();
  void over(bool was_killed);

  boost::asio::io_context& loop_;
  const Guard& guard_;
  const Clock& clock_;
  const Log& log_;
  const Setting setting_;
  std::optional<StackPrograms>
      programs_;  // looked up at the start, where they may be needed: when workers hang, a folder of PATH may hang with them
  boost::asio::steady_timer deadline_;
  std::deque<Waiting> waiting_;
  std::optional<Running> running_;
  std::map<std::uint64_t, std::unique_ptr<Child>> killed_;  // by number, until the kernel has ended them
  std::uint64_t started_ = 0;
};

}  // namespace elrun::inline v0::launcher
