#pragma once
/// \file Orphans: processes that workers started and left behind. The agent inherits them, collects them, and ends them
/// before the next attempt.

#include <sys/types.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <elrun/units.hpp>

#include "launcher/process/orphan_owner.hpp"
#include "lib/base/clock.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the loop; one per process. From its making on this process is the reaper of all that its workers start:
/// what loses its parent becomes a child of this process, whatever session or group it is in. As process 1 of a
/// container it is that anyway. What has ended is collected at once, so that no zombie stays.
class Orphans {
 public:
  /// `socket`: of the agent, as its workers find it in their environment. `is_known`: true for a child that other code collects (a worker, the guard).
  Orphans(boost::asio::io_context& loop, const Clock& clock, std::string socket, std::function<bool(pid_t)> is_known);
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;
  /// The agent has another socket, which workers that start from now on find.
  void has_socket(std::string socket) { sockets_.push_back(std::move(socket)); }

  struct Ended {
    std::size_t killed = 0;      ///< With what they had started themselves.
    std::vector<pid_t> remain;   ///< Did not end within `limit` (they hang in the kernel).
    std::vector<pid_t> unclear;  ///< Stay because nobody can say whose they are; each is named once.
  };
  using Fate = std::function<OrphanFate(pid_t, const OrphanOwner&)>;
  /// Kills those that are to end, and waits until the kernel has ended them, `limit` at most.
  [[nodiscard]] Ended end(Duration limit, const Fate& fate);
  /// An orphan here may be of a process that no worker started: this is process 1 of a container, in which others start processes as well (`kubectl exec`), or
  /// had children before any worker was.
  [[nodiscard]] bool inherits_others() const { return inherits_others_; }

 private:
  void wait_for_endings();
  void collect();
  [[nodiscard]] std::vector<pid_t> find();
  void learn_owners(const std::vector<pid_t>& pids);
  const Clock& clock_;
  std::vector<std::string> sockets_;
  std::function<bool(pid_t)> is_known_;
  struct Known {
    OrphanOwner owner;
    bool was_named = false;  // as unclear
  };
  std::map<pid_t, Known> known_;  // that were looked at and not collected; a process that is ending has no environment any more
  std::set<pid_t> others_;        // were children before any worker was (`helper & exec elrun`): not a worker's, and left alone
  bool inherits_others_ = false;
  boost::asio::signal_set endings_;
};

/// Kills all that this process started and they started, which is not this process's child, or is ending.
void kill_descendants(pid_t pid);

}  // namespace elrun::inline v0::launcher
