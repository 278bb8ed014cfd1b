#pragma once
/// \file SteadyTimes: a ledger's times by cause, as counters that are looked at now and then. Pure.

#include <algorithm>

#include "launcher/report/ledger.hpp"

namespace elrun::inline v0::launcher {

/// What a ledger says of the time since its newest event may turn out otherwise: a step that runs may be cut short. Yet a counter never falls. So what
/// a cause was given too much stays there until the cause has grown into it, and others lack as much meanwhile: the sum is always the wall time.
class SteadyTimes {
 public:
  /// `times`: of a ledger, up to now. Their sum never falls.
  const TimeByCause& look(const TimeByCause& times) {
    Duration left = sum_of(times) - sum_of(shown_);
    for (std::size_t i = 0; i < time_causes; ++i) {
      const Duration grown = std::clamp(times[i] - shown_[i], Duration{0}, std::max(left, Duration{0}));
      shown_[i] += grown;
      left -= grown;
    }
    return shown_;
  }

 private:
  TimeByCause shown_{};
};

}  // namespace elrun::inline v0::launcher
