#pragma once
/// \file Lines that others can cause as often as they like.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0 {

/// Says of lines of one kind so many in a while, and how many were left out. One thread.
class LogLimited {
 public:
  explicit LogLimited(std::uint32_t most = 20, Duration in = 10s) : most_{most}, in_{in} {}
  void operator()(const Log& log, Instant now, Level level, std::string_view text) {
    if (now >= until_) logged_ = 0, until_ = now + in_;
    if (logged_ >= most_) return void(++dropped_);
    ++logged_;
    const std::uint64_t dropped = std::exchange(dropped_, 0);
    log(level, dropped == 0 ? std::string{text} : std::string{text} + " (" + std::to_string(dropped) + " more like this before)");
  }

 private:
  const std::uint32_t most_;
  const Duration in_;
  Instant until_{};
  std::uint32_t logged_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace elrun::inline v0
