#pragma once
/// \file Core: TokenBucket, a bound on bytes per second. Instants are arguments.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// Bytes are paid at the rate, one after the other, and may be used once they are paid. What was not used is saved up for `saved_up_max`, no longer. So in any time T
/// no more than `rate * (T + saved_up_max)` bytes are used.
class TokenBucket {
 public:
  static constexpr Duration saved_up_max = std::chrono::milliseconds{100};

  /// Of what is taken from now on; 0: there is no bound.
  void set_rate(Bytes per_second) { per_second_ = per_second.value(); }
  [[nodiscard]] Bytes rate() const { return Bytes{per_second_}; }
  /// Takes bytes: so long after `now` they are paid, and all that are taken later come after them.
  [[nodiscard]] Duration take(std::uint64_t bytes, Instant now) {
    if (per_second_ == 0) return {};
    const std::chrono::duration<double> price{static_cast<double>(bytes) / static_cast<double>(per_second_)};
    paid_at_ = std::max(paid_at_, now - saved_up_max) + std::chrono::ceil<Duration>(price);
    return std::max<Duration>(paid_at_ - now, Duration{0});
  }
  /// What was taken is used before it is paid: nobody comes after it.
  void forget(Instant now) { paid_at_ = std::min(paid_at_, now); }

 private:
  std::uint64_t per_second_ = 0;
  Instant paid_at_{};
};

}  // namespace elrun::inline v0
