#pragma once
/// \file Rounds: how ranks that run user code at different places serve each other.
///
/// Whoever needs something of the others (a unit's weights, or that they take the leaf of one) comes to a round. Everybody
/// else comes to it too, at the latest where its own part of the phase ends, and says what it needs, maybe nothing; then one
/// exchange brings everybody what it asked for. So nobody waits for a rank that waits for something else, units may come in
/// another order on each rank, and who has no slot takes part without running user code. A phase is over when all have said
/// that they need nothing more of it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <elrun/result.hpp>

namespace elrun::inline v0 {

/// What all ranks are at, at the same time.
struct Phase {
  enum class What : std::uint64_t {
    between,  ///< Outside of slots: from `restore()` to the first step, and between two.
    slot,     ///< The `index`-th slot of each rank that has one.
    evaluation,
  };
  What what = What::between;
  std::uint64_t step = 0, index = 0;
  friend constexpr bool operator==(const Phase&, const Phase&) = default;
};
[[nodiscard]] std::string to_string(const Phase& phase);

/// What one rank says. It travels as it lies here: words of 64 bits, without padding.
struct Need {
  static constexpr std::uint64_t nothing = ~std::uint64_t{0};
  Phase phase;
  std::uint64_t gather = nothing;    ///< The unit whose weights it wants,
  std::uint64_t hand_off = nothing;  ///< and the one whose leaf it has made.
  std::uint64_t last = 0;            ///< 1: it needs nothing more in this phase.
};
static_assert(sizeof(Need) == 6 * sizeof(std::uint64_t));

/// Whether all are at the same phase and name units that there are; the failure names who is not, and both stages.
[[nodiscard]] Result<void> check(std::span<const Need> by_rank, std::uint64_t units);

/// A rank that has handed off more units of this phase than the slowest rank with a slot keeps its leaf for a later round. So an owner holds early
/// leaves of one unit at most, where all ranks come to their units in the same order. `handed`: units handed off so far, by rank, of those that
/// have a slot. All ranks come to the same.
void put_off(std::span<Need> by_rank, std::span<const std::uint32_t> handed);

}  // namespace elrun::inline v0
