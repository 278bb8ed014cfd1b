#pragma once
/// \file How long a condition variable waits for a deadline.

#include <algorithm>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// Until the deadline, and a year at most: the standard library adds it to the time of a clock of its own, and what has no end overflows there.
[[nodiscard]] inline Duration wait_time(Deadline deadline, Instant now) { return std::min<Duration>(deadline.left(now), 24h * 365); }

}  // namespace elrun::inline v0
