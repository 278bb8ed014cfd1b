#pragma once
/// \file Which granules of the simulated model a member holds, reckoned without the product's code.

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

using Held = std::array<std::set<std::uint64_t>, 2>;  ///< Granules, by unit.
inline constexpr std::array<std::uint64_t, 2> granules{3, 1};

[[nodiscard]] inline bool is_all(const Held& held) {
  for (std::size_t unit = 0; unit < granules.size(); ++unit)
    if (held[unit].size() < granules[unit]) return false;
  return true;
}

/// Of a model that is cut into so many parts, those.
inline Held granules_of(std::uint64_t parts, const std::vector<std::uint64_t>& held) {
  Held out;
  for (std::size_t unit = 0; unit < granules.size(); ++unit) {
    const std::uint64_t each = (granules[unit] + parts - 1) / parts;
    for (const std::uint64_t part : held)
      for (std::uint64_t g = part * each; g < std::min<std::uint64_t>(granules[unit], (part + 1) * each); ++g) out[unit].insert(g);
  }
  return out;
}

/// Two parts of as many as there are members, one node's members after the other's, from the first part again behind the last; where one of several
/// nodes has more than half of the members, its members have one copy and all others another one.
inline Held mirrored_parts_of(const PlaceTaken& mine, std::vector<PlaceTaken> there) {
  std::ranges::sort(there, {}, &PlaceTaken::rank);
  const auto on_node_of = [&](const PlaceTaken& place) { return std::ranges::count(there, place.node, &PlaceTaken::node); };
  const auto first_on_node = [&](const PlaceTaken& place) {
    return std::ranges::find(there, place.node, &PlaceTaken::node) - there.begin();
  };
  const auto all = std::ssize(there);
  const auto is_on_larger = [&](const PlaceTaken& place) { return 2 * on_node_of(place) > all; };
  const bool is_uneven = std::ranges::any_of(there, is_on_larger) && !std::ranges::all_of(there, is_on_larger);
  std::uint64_t before = 0, others = 0;
  for (const PlaceTaken& place : there) {
    if (is_uneven && is_on_larger(place) != is_on_larger(mine)) continue;
    ++others;
    before += std::pair{first_on_node(place), place.rank} < std::pair{first_on_node(mine), mine.rank};
  }
  if (is_uneven) return granules_of(others, {before});
  return granules_of(others, {2 * before % others, (2 * before + 1) % others});
}

}  // namespace elrun::sim
