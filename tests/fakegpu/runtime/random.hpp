#pragma once
/// \file Numbers from a seed (splitmix64).

#include <cstdint>

namespace fakegpu {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_{seed} {}
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  /// Below `bound`; 0 for a bound of 0.
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : next() % bound; }

 private:
  std::uint64_t state_;
};

}  // namespace fakegpu
