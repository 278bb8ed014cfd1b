#pragma once
/// \file Which slot of a step is computed again, and by whom: a pure function of seed, step and the slots of the ranks, so
/// all ranks work it out alike.

#include <cstdint>
#include <optional>
#include <vector>

namespace elrun::inline v0 {

struct Audit {
  std::uint32_t slot = 0;
  std::uint32_t owner = 0;              ///< The rank that computes it for the step.
  std::vector<std::uint32_t> auditors;  ///< One other rank, and in a world of three or more a second: two against one.
  friend bool operator==(const Audit&, const Audit&) = default;
};
/// Nothing: not in this step, or there is no other rank. `probability` from 0 to 1.
[[nodiscard]] std::optional<Audit> choose_audit(std::uint64_t seed, std::uint64_t step, double probability,
                                                const std::vector<std::vector<std::uint32_t>>& slots_by_rank);

}  // namespace elrun::inline v0
