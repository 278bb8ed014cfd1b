#pragma once
/// \file Bytes, durations, instants and deadlines.

#include <chrono>
#include <compare>
#include <cstdint>

#include <elrun/export.hpp>

namespace elrun::inline v0 {

using namespace std::chrono_literals;  // NOLINT: `30s` reads better than any wrapper of ours

/// A length of time. Everything in elrun is kept in nanoseconds.
using Duration = std::chrono::nanoseconds;

/// The monotonic time of one process. Instants of two processes are never compared.
struct MonotonicTime {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<MonotonicTime, Duration>;
  static constexpr bool is_steady = true;
};
using Instant = MonotonicTime::time_point;

/// The instant after which a wait ends with `Code::deadline_passed`.
struct Deadline {
  Instant at{};
  /// A wait that is longer than the clock can count, such as `Duration::max()`, has no end.
  [[nodiscard]] static constexpr Deadline after(Instant now, Duration wait) {
    return {wait > Duration{0} && now > Instant::max() - wait ? Instant::max() : now + wait};
  }
  [[nodiscard]] constexpr bool passed(Instant now) const { return now >= at; }
  [[nodiscard]] constexpr Duration left(Instant now) const { return now >= at ? Duration{0} : at - now; }
  friend constexpr auto operator<=>(const Deadline&, const Deadline&) = default;
};

/// `wait` from now by this process's monotonic clock, for programs that keep no clock of their own.
[[nodiscard]] ELRUN_API Deadline deadline_in(Duration wait);

/// A number of bytes. Arithmetic is that of 64 bits without sign.
class Bytes {
 public:
  constexpr Bytes() = default;
  explicit constexpr Bytes(std::uint64_t count) : count_{count} {}
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return count_; }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes{a.count_ + b.count_}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes{a.count_ - b.count_}; }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return Bytes{a.count_ * n}; }

 private:
  std::uint64_t count_ = 0;
};

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes{n}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes{n << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes{n << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes{n << 30}; }
}  // namespace literals

}  // namespace elrun::inline v0
