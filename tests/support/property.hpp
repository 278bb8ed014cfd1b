#pragma once
/// \file Properties by seed: a failure prints the line that replays it.

#include <cstdint>
#include <cstdlib>
#include <string>

#include <elrun/philox.hpp>
#include "tests/support/catch.hpp"

namespace elrun::test {

/// Runs `property(rng)` for seeds 0 .. count-1, or for ELRUN_SEED alone when it is set; ELRUN_FULL asks for ten times
/// as many.
template <class Property>
void for_all_seeds(std::uint64_t count, Property property) {
  const char* only = std::getenv("ELRUN_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 0) : 0;
  const std::uint64_t last = only != nullptr ? first + 1 : std::getenv("ELRUN_FULL") != nullptr ? count * 10 : count;
  for (std::uint64_t seed = first; seed < last; ++seed) {
    INFO("replay with ELRUN_SEED=" << seed);
    Rng rng{seed};
    property(rng);
  }
}

}  // namespace elrun::test
