#pragma once
/// \file What one exchange per step adds up: with Reduce::exact the leaves of the canonical tree over slots, wherever they
/// were made; with Reduce::fast one sum for each rank that has slots, so the result follows the world.

#include <cstdint>
#include <vector>

#include <elrun/plan.hpp>

#include "lib/job/gradients/tree.hpp"

namespace elrun::inline v0 {

struct Summands {
  std::vector<std::vector<std::uint32_t>> by_rank;  ///< Leaves of the tree, ascending.
  std::uint64_t count = 0;                          ///< Of all ranks.
  std::vector<FoldSchedule> schedules;              ///< By rank: what it does with the gradients of its slots.
};
[[nodiscard]] Summands summands(const std::vector<std::vector<std::uint32_t>>& slots_by_rank, Reduce reduce);

}  // namespace elrun::inline v0
