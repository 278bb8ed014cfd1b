#pragma once
/// \file RootCause: which worker of a generation failed first, and the verdict that waits until this is known. Pure.
///
/// Failure reports can arrive out of order; the one with the earliest time is the root cause. Times are by the coordinator's clock: a node says
/// how long ago its worker failed.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/stall.hpp"

namespace elrun::inline v0 {

/// When the restart budget is used up, wait this long for further failure reports before naming the root cause, unless all workers have ended
/// before.
constexpr Duration root_cause_window = 2s;

class RootCause {
 public:
  /// A worker that failed by itself.
  struct Death {
    Instant at;
    std::int32_t exit_code = 0;
    std::string what;
    WorkerDeath worker;
    bool lived = false;  ///< What it says is not of an end: its process had not ended when its node told of it.
  };
  /// The job fails with this reason; the verdict is due then.
  struct Failing {
    Instant until;
    std::string why;
  };

  /// Notes a death in the order of time. A second report of one worker, after a broken stream, changes nothing; but the first that tells of its end replaces one of when it
  /// lived, whose time it keeps. At most `deaths_max` are kept, and of all but the first only the end of traceback and last lines.
  void report(Death death);
  /// Forgets the report of this worker, and returns it.
  std::optional<Death> take(const NodeId& node, std::uint32_t local_rank);
  [[nodiscard]] const Death* find(const NodeId& node, std::uint32_t local_rank) const;
  /// The root cause so far; nullptr: no worker has failed.
  [[nodiscard]] const Death* first() const { return deaths_.empty() ? nullptr : &deaths_.front(); }
  [[nodiscard]] bool any() const { return !deaths_.empty(); }
  /// The root cause, then what failed after it.
  [[nodiscard]] std::vector<WorkerDeath> workers() const;
  void forget_deaths() { deaths_.clear(); }

  /// The stream of this member was broken when a worker of another one failed: that may be the consequence.
  void suspect(const NodeId& node) { suspects_.insert(node); }
  /// The member was lost. True if it explains the failure of the others; all suspicions end with that.
  bool explains(const NodeId& lost);

  /// No restart is left: the job fails when the workers have ended, or when the window ends.
  void fail(std::string why, Instant now) { failing_ = Failing{now + root_cause_window, std::move(why)}; }
  void go_on() { failing_.reset(); }
  void excuse(const Stall& stall) {
    if (failing_) stall.excuse(failing_->until);
  }
  [[nodiscard]] const std::optional<Failing>& failing() const { return failing_; }

  /// A generation begins.
  void begin() { deaths_.clear(), suspects_.clear(); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::vector<Death> deaths_;  // the earliest first; each worker once
  std::set<NodeId> suspects_;
  std::optional<Failing> failing_;
};

}  // namespace elrun::inline v0
