#pragma once
/// \file Expected: what training comes to where nothing happens.

#include <cstdint>
#include <vector>

#include <elrun/plan.hpp>

namespace elrun::sim {

/// What the model's parameters are after each step, and the hash at the end: of a world of one in which nothing happens.
struct Expected {
  std::vector<std::vector<std::uint64_t>> parameters;  ///< By step, by unit: their hash.
  std::uint64_t final_hash = 0;
};
/// Made once for each plan; any thread may ask.
[[nodiscard]] const Expected& expected(const Plan& plan);

}  // namespace elrun::sim
