#pragma once
/// \file Tiles: how one launch works on a table of runs of any sizes. Each run is cut into tiles of one size, the last of which may be short, and tiles
/// are counted through the table. A block takes a tile, and finds its run by the number of each run's first tile.

#include <cstdint>

#include <elrun/hd.hpp>

namespace elrun::inline v0 {

[[nodiscard]] ELRUN_HD constexpr std::uint64_t tile_count(std::uint64_t elements, std::uint64_t tile) {
  return (elements + tile - 1) / tile;
}

/// The run to which `tile` belongs: the last whose first tile is not behind it. Runs have a member `first_tile`, which ascends from 0; none is empty.
template <class Run>
[[nodiscard]] ELRUN_HD const Run& run_of_tile(const Run* runs, std::uint32_t count, std::uint64_t tile) {
  std::uint32_t begin = 0, end = count;  // runs[begin].first_tile <= tile < runs[end].first_tile
  while (end - begin > 1) {
    const std::uint32_t middle = begin + (end - begin) / 2;
    if (runs[middle].first_tile <= tile) begin = middle;
    else end = middle;
  }
  return runs[begin];
}

}  // namespace elrun::inline v0
