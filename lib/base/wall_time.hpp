#pragma once
/// \file Wall time in parts.

#include <cstdint>

namespace elrun::inline v0 {

struct WallTime {
  std::int64_t seconds = 0;      ///< Since 1970; before it, below 0.
  std::int64_t nanoseconds = 0;  ///< From 0 to 999,999,999, also before 1970, as a clock shows them.
};

[[nodiscard]] constexpr WallTime wall_time(std::int64_t since_1970_ns) {
  constexpr std::int64_t second = 1'000'000'000;
  const std::int64_t rest = since_1970_ns % second;
  return rest < 0 ? WallTime{since_1970_ns / second - 1, rest + second} : WallTime{since_1970_ns / second, rest};
}

}  // namespace elrun::inline v0
