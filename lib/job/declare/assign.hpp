#pragma once
/// \file Which rank runs which slots of a step: balanced first, then so that the traffic of the gradients is least.
///
/// No rank gets more than ceil(V/W) slots, for the slowest one sets the pace; none gets none while W <= V. Among such
/// sizes those with the smallest sum of one-bits are taken: slots are packed as aligned blocks of a power of two, each
/// of which is one node of the canonical tree, so a rank with s slots sends popcount(s) pieces. With W > V the surplus
/// ranks own no slots; they hold shards and vote like all others.

#include <cstdint>
#include <vector>

namespace elrun::inline v0 {

/// Slots of each rank, ascending.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> assign_slots(std::uint32_t slots, std::uint32_t world);
/// The same where only some ranks run slots. `computes`: by rank; one at least does.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> assign_slots(std::uint32_t slots, const std::vector<bool>& computes);

/// Part of the world's compute that works: V / (W ceil(V/W)).
[[nodiscard]] constexpr double compute_efficiency(std::uint64_t slots, std::uint64_t world) {
  const std::uint64_t most = (slots + world - 1) / world;  // slots of one rank
  return static_cast<double>(slots) / (static_cast<double>(world) * static_cast<double>(most));
}

}  // namespace elrun::inline v0
