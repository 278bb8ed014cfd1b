#pragma once
/// \file SharedClock: a clock that any thread of a test moves, while others look at it. `ManualClock` is for one thread.

#include <atomic>

#include "lib/base/clock.hpp"

namespace elrun::test {

class SharedClock final : public Clock {
 public:
  [[nodiscard]] Instant now() const override { return Instant{Duration{now_.load()}}; }
  [[nodiscard]] std::int64_t wall_ns() const override { return now_.load(); }
  void advance(Duration by) { now_ += by.count(); }

 private:
  std::atomic<Duration::rep> now_ = 0;
};

}  // namespace elrun::test
