#pragma once
/// \file Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): random numbers by
/// counter, so that a number depends on its place and on nothing else. One functor for host and device.

#include <array>
#include <cstdint>

#include <elrun/hd.hpp>

namespace elrun::inline v0 {

struct Philox4x32 {
  using Counter = std::array<std::uint32_t, 4>;
  using Key = std::array<std::uint32_t, 2>;

  /// Ten rounds. Every bit of the result depends on every bit of counter and key.
  [[nodiscard]] ELRUN_HD static constexpr Counter block(Counter counter, Key key) noexcept {
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t left = std::uint64_t{0xD2511F53u} * counter[0];
      const std::uint64_t right = std::uint64_t{0xCD9E8D57u} * counter[2];
      counter = Counter{static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(right),
                        static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(left)};
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    return counter;
  }
};

/// 24 random bits to a float in [0, 1).
[[nodiscard]] ELRUN_HD constexpr float unit_float(std::uint32_t bits) noexcept { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }

/// A small sequential generator for tests, jitter and back-off: Philox, one counter after the other.
class Rng {
 public:
  explicit constexpr Rng(std::uint64_t seed) : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {}
  [[nodiscard]] constexpr std::uint32_t next() {
    if (left_ == 0) {
      block_ = Philox4x32::block({static_cast<std::uint32_t>(counter_), static_cast<std::uint32_t>(counter_ >> 32), 0, 0}, key_);
      ++counter_;
      left_ = 4;
    }
    return block_[4 - left_--];
  }
  [[nodiscard]] constexpr std::uint64_t next64() { return (std::uint64_t{next()} << 32) | next(); }
  /// Uniform in [0, bound) without bias; `bound` is above 0.
  [[nodiscard]] constexpr std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t limit = ~std::uint64_t{0} - (~std::uint64_t{0} % bound + 1) % bound;
    std::uint64_t x = next64();
    while (x > limit) x = next64();
    return x % bound;
  }
  [[nodiscard]] constexpr bool chance(double p) { return static_cast<double>(next() >> 8) * 0x1.0p-24 < p; }

 private:
  Philox4x32::Key key_;
  Philox4x32::Counter block_{};
  std::uint64_t counter_ = 0;
  unsigned left_ = 0;
};

}  // namespace elrun::inline v0
