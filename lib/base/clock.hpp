#pragma once
/// \file Time as an argument: only `main` and `elrun::run` make a SteadyClock, all else takes a Clock&.

#include <cstdint>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// Monotonic time of this process, and the wall's time for people. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual Instant now() const = 0;
  /// Nanoseconds since 1970 (UTC). For logs and files only: nothing is decided by it.
  [[nodiscard]] virtual std::int64_t wall_ns() const = 0;
};

/// The system's clocks.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] Instant now() const override;
  [[nodiscard]] std::int64_t wall_ns() const override;
};

}  // namespace elrun::inline v0
