#pragma once
/// \file ToldErrors: whether an error is worth another word.

#include <elrun/units.hpp>

namespace elrun::inline v0::launcher {

/// A full disk is full for all files at once, and may have room for a moment again and again: that is told once a minute at most.
class ToldErrors {
 public:
  /// Whether to tell of it now. Then it is told.
  [[nodiscard]] bool is_due(int error, Instant now) {
    if (error == error_ && now - told_ < again_after) return false;
    error_ = error;
    told_ = now;
    return true;
  }

 private:
  static constexpr Duration again_after = 1min;
  int error_ = 0;  // 0: none yet
  Instant told_{};
};

}  // namespace elrun::inline v0::launcher
