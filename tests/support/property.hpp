#pragma once
/// \file Properties by seed: a failure prints the line that replays it.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <elrun/philox.hpp>
#include "tests/support/catch.hpp"

// g++ says it by macros, clang by features.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ELRUN_TEST_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ELRUN_TEST_SANITIZED
#endif
#endif

namespace elrun::test {

#ifdef ELRUN_TEST_SANITIZED
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

/// A sanitizer runs a third of what a case goes through: it says nothing new of the hundredth world that takes the same way through the code.
inline bool runs_a_third() { return is_sanitized && std::getenv("ELRUN_FULL") == nullptr; }

/// The step of a loop over points, such as the exchanges at which a member dies: three times as long where a third runs.
inline std::uint64_t stride(std::uint64_t step) { return runs_a_third() ? 3 * step : step; }

/// Of the combinations of a case's lists, such as placements, worlds and slots, a third where a third runs, else all. Multiples of the golden ratio are even
/// over any period: of eight combinations and more, each value of each short list has its turn. The first combination is always taken.
class Selection {
 public:
  explicit Selection(bool a_third = runs_a_third()) : a_third_{a_third} {}
  [[nodiscard]] bool takes() {
    constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;  // of 2^64
    return !a_third_ || golden * number_++ < ~std::uint64_t{0} / 3;
  }

 private:
  bool a_third_;
  std::uint64_t number_ = 0;
};

/// Seeds of ELRUN_FULL: ten times as many; under a sanitizer an eighth, for it looks at each of them more closely.
inline std::uint64_t seeds_of(std::uint64_t count) {
  if (std::getenv("ELRUN_FULL") != nullptr) return count * 10;
  return is_sanitized ? std::max<std::uint64_t>(1, count / 8) : count;
}

/// Runs `property(rng)` for seeds 0 .. seeds_of(count) - 1, or for ELRUN_SEED alone when it is set.
template <class Property>
void for_all_seeds(std::uint64_t count, Property property) {
  const char* only = std::getenv("ELRUN_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 0) : 0;
  const std::uint64_t last = only != nullptr ? first + 1 : seeds_of(count);
  for (std::uint64_t seed = first; seed < last; ++seed) {
    INFO("replay with ELRUN_SEED=" << seed);
    Rng rng{seed};
    property(rng);
  }
}

}  // namespace elrun::test
