#pragma once
/// \file WorkerProcesses: the workers' processes of this node, their output, and what they leave behind.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/agent.hpp"
#include "launcher/output/output.hpp"
#include "launcher/process/child.hpp"
#include "launcher/process/exit_watch.hpp"
#include "launcher/process/orphans.hpp"
#include "launcher/process/stack_tools.hpp"
#include "launcher/report/reporter.hpp"
#include "launcher/supervise/events.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the agent's loop. Does what the supervisor asks to have done with workers' processes, and tells what becomes of them by `feed`,
/// which queues the event and runs nothing. It decides nothing but which files a start has. More fields than 15: eight are what it was made with.
class WorkerProcesses {
 public:
  struct Setting {
    const AgentSetting& agent;
    RunId run;
    NodeId node;
    Path socket;                                 ///< On which workers reach the agent at first
    std::function<Result<Path>()> move_socket;   ///< Its directory was removed: the agent listens in another one as well, there.
    std::function<bool(pid_t)> is_other;         ///< A child process that is no worker, and that others collect.
    std::function<bool(LocalRank)> is_replaced;  ///< When it dies, others go on without it, and a successor takes its place later.
  };
  WorkerProcesses(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, const Log& log, Setting setting,
                  Reporter& reporter, std::function<void(Event)> feed);

  /// Before anything else. `host`: as people know this machine. Fails when a directory for the logs cannot be made.
  Result<void> open_output(const std::string& host, LogStream& lines);
  /// Where the process before it is still being taken apart by the kernel, the start waits for that: its memory and device are needed.
  void start(const Spawn& spawn);
  /// A process has opened a session.
  void has_session() { exit_watch_.look(); }
  void signal(const SignalGroup& signal);
  /// Its end is told now, if it was not yet.
  void give_up(LocalRank worker);
  void release(LocalRank worker);
  /// Waits for their ends, for 2 s at most.
  void end_orphans(const EndOrphans& orphans);
  void take_stacks(LocalRank worker);
  [[nodiscard]] bool is_group(pid_t group) const;
  /// Calls `then` when all output is shown. No worker may be started after that.
  void after_output(std::function<void()> then) { output_->after_all(std::move(then)); }
  /// The loop has ended: kills and collects those that are left.
  void clear();

 private:
  /// Was released before the kernel had taken it apart.
  struct Leaving {
    std::unique_ptr<Child> child;
    bool ends_orphans = false;        // What it started was to end meanwhile, and may not have been this process's yet
    std::optional<Spawn> successor;   // waits for its end
    boost::asio::steady_timer tells;  // that this takes long
  };
  void ended(LocalRank worker, Ending ending, std::int64_t ended_ns);
  void is_gone(LocalRank worker);
  void wait_for_end(LocalRank worker, const Spawn& successor);
  void end_orphans_of(LocalRank worker);
  void end_orphans(const Orphans::Fate& fate);
  void watch_output();
  void look_for_directory();
  [[nodiscard]] bool is_known(pid_t pid) const;

  boost::asio::io_context& loop_;
  const Guard& guard_;
  const Clock& clock_;
  const Log& log_;
  const Setting setting_;
  Reporter& reporter_;
  const std::function<void(Event)> feed_;
  std::map<LocalRank, std::unique_ptr<Child>> children_;
  std::map<LocalRank, Leaving> leaving_;
  std::set<LocalRank> told_;                    // of `children_`: their end
  std::map<LocalRank, std::string> never_ran_;  // why a worker could not be executed
  struct {
    Generation generation{};
    std::set<LocalRank> workers;
  } attempt_;  // the newest
  Path socket_;
  StackTools stack_tools_;
  std::unique_ptr<Output> output_;
  boost::asio::steady_timer output_watch_;
  std::map<LocalRank, std::uintmax_t> bytes_seen_;
  Orphans orphans_;
  ExitWatch exit_watch_;
};

}  // namespace elrun::inline v0::launcher
