#pragma once
/// \file ManualClock: a clock that a test or the simulator moves.

#include "lib/base/clock.hpp"

namespace elrun::inline v0 {

class ManualClock final : public Clock {
 public:
  [[nodiscard]] Instant now() const override { return now_; }
  [[nodiscard]] std::int64_t wall_ns() const override { return now_.time_since_epoch().count(); }
  void advance(Duration by) { now_ += by; }

 private:
  Instant now_{};
};

}  // namespace elrun::inline v0
