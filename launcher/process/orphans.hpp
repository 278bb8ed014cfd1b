#pragma once
/// \file Orphans: processes that workers started and left behind. The agent inherits them, collects them, and ends them
/// before the next attempt.

#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/clock.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the loop; one per process. From its making on this process is the reaper of all that its workers start:
/// what loses its parent becomes a child of this process, whatever session or group it is in. As process 1 of a
/// container it is that anyway. What has ended is collected at once, so that no zombie stays.
class Orphans {
 public:
  /// `is_known`: true for a child that other code collects (a worker, the guard).
  Orphans(boost::asio::io_context& loop, const Clock& clock, std::function<bool(pid_t)> is_known);
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  struct Ended {
    std::size_t killed = 0;     ///< With what they had started themselves.
    std::vector<pid_t> remain;  ///< Did not end within `limit` (they hang in the kernel).
  };
  /// Kills all there are but for those that are spared, and waits until the kernel has ended them, `limit` at most.
  [[nodiscard]] Ended end(Duration limit, const std::function<bool(pid_t)>& is_spared);

 private:
  void wait_for_endings();
  void collect();
  const Clock& clock_;
  std::function<bool(pid_t)> is_known_;
  std::set<pid_t> others_;  // were children before any worker was (`helper & exec elrun`): not a worker's, and left alone
  boost::asio::signal_set endings_;
};

/// The worker that this process, or the one that started it, was; by `local_rank_variable` in its environment.
[[nodiscard]] std::optional<LocalRank> local_rank_of(pid_t pid);

/// Kills all that this process started and they started, which is not this process's child, or is ending.
void kill_descendants(pid_t pid);

}  // namespace elrun::inline v0::launcher
