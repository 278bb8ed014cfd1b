#pragma once
/// \file SuccessorWait: whether this node brings the successors of its dead workers along into the next world, and how long it waits for them. Pure.
///
/// A node that does not wait gives up the places of its dead workers. The others take their slots over, and the world changes once more when the
/// successors are ready. A node that waits holds all others up for as long as the start takes, and the world changes once. So it waits where a start is
/// short beside the time that the smaller world would lose in one step: of W equal workers without L, a step takes W/(W-L) times as long.
///
/// Both times are measured here, of the newest steps and the newest start. If the start takes longer this time, the node gives up at that bound. Then
/// the failure has cost as much as one more step of the smaller world.
///
/// It waits only after a generation in which a new step was decided. Else a worker that fails in its first step, again and again, would keep the others from
/// deciding any step, and each failure would use up a restart.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0::launcher {

class SuccessorWait {
 public:
  /// All others wait as long: never for more than `longest`.
  explicit SuccessorWait(Duration longest) : longest_{longest} {}

  /// Steps of two generations are not compared: a change of the world lies between them.
  void begin_generation() { decided_at_.reset(), progressed_ = false; }
  /// It was decided. It may have been decided before, and done again since.
  void decided(std::uint64_t step, Instant now) {
    if (decided_at_) step_before_ = std::exchange(newest_step_, now - *decided_at_);
    decided_at_ = now;
    progressed_ = progressed_ || step > highest_;
    highest_ = std::max(highest_, step);
  }

  /// The process of `worker` is to be started. It may have to wait for memory and devices of the one before it, which counts.
  void starts(LocalRank worker, Instant now) { starting_.insert_or_assign(worker, now); }
  /// Its program waits for its peers, or for a place.
  void has_started(LocalRank worker, Instant now) {
    const auto at = starting_.find(worker);
    if (at == starting_.end()) return;
    start_ = now - at->second;
    starting_.erase(at);
  }
  /// It ended. If it had not started yet, the last measurement no longer holds.
  void ended(LocalRank worker) {
    if (starting_.erase(worker) > 0) start_.reset();
  }

  /// How long to wait for the successors of `lost` workers of a world of `all`; 0: not at all. Nobody waits while another start is under way: it may be a slow one.
  [[nodiscard]] Duration at_most(std::uint32_t lost, std::uint32_t all) const {
    if (!progressed_ || !newest_step_ || !start_ || !starting_.empty() || lost == 0 || lost >= all) return Duration{0};
    const Duration step =
        std::min(*newest_step_, step_before_.value_or(*newest_step_));  // one of them may have been long: a save, an evaluation
    const Duration bound = std::min(step * lost / (all - lost), longest_);
    return *start_ < bound ? bound : Duration{0};
  }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  Duration longest_;
  bool progressed_ = false;    // in this generation
  std::uint64_t highest_ = 0;  // of all steps
  std::optional<Instant> decided_at_;
  std::optional<Duration> newest_step_, step_before_, start_;
  std::map<LocalRank, Instant> starting_;
};

}  // namespace elrun::inline v0::launcher
