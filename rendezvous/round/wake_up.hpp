#pragma once
/// \file WakeUp: the one timer of the round. It is set to the first of all deadlines, and tells how late this process itself is. Pure.

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

/// One row of the round's deadlines: who is waited for or waits, how long, and what then.
struct RoundDeadline {
  std::string_view who;
  Instant at;
  std::string_view then;
};

class WakeUp {
 public:
  /// The timer has fired: the next one is announced, even for the same instant.
  void fired() { wake_.reset(); }
  /// How much later it is than the timer was to fire. A process that was itself stopped (paused, swapped out) is late.
  [[nodiscard]] Duration late(Instant now) const { return wake_ ? now - *wake_ : Duration{0}; }
  /// The delay was compensated, once for all that came meanwhile.
  void caught_up(Instant now) { wake_ = now; }

  /// The earliest of the deadlines that are not due yet. While streams are `watched`, the clock is looked at with every heartbeat: otherwise
  /// this process would not notice that it was stopped. Nothing if the timer is set to that already, or no timer is needed.
  [[nodiscard]] std::optional<Instant> next(const std::vector<RoundDeadline>& deadlines, bool watched, Duration heartbeat, Instant now) {
    if (watched && beat_at_ <= now) beat_at_ = now + heartbeat;
    std::optional<Instant> next;
    if (watched) next = beat_at_;
    for (const RoundDeadline& row : deadlines) next = std::min(next.value_or(Instant::max()), row.at);
    if (next == wake_) return {};
    wake_ = next;
    return next;
  }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  Instant beat_at_{};
  std::optional<Instant> wake_;  // what the timer is set to
};

}  // namespace elrun::inline v0
