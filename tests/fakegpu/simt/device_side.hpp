#pragma once
/// \file What the code of a twin calls while it runs: its place in the grid, barriers, lanes of a warp, atomics, shared memory.
/// simt.hpp gives these the names that CUDA has for them.

#include <cstddef>
#include <cstdint>

namespace fakegpu {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Position {
  Index thread, block, block_dim, grid_dim;
};
/// Of the thread that runs.
extern Position position;

/// Waits for all threads of the block.
void block_barrier();
/// How many threads of the block give a non-zero value: the reductions of __syncthreads_count, _and, _or.
unsigned block_count(bool value);

/// What lanes of a warp do together. Lanes that meet in different ones are reported.
enum class WarpCall : std::uint8_t { sync, shuffle, ballot };
/// Gives `value`, waits for all lanes of `mask` that still run, and takes the value of lane `from`.
std::uint64_t warp_exchange(WarpCall call, unsigned mask, std::uint64_t value, unsigned from);
/// The lanes of `mask` whose value is not zero.
unsigned warp_ballot(unsigned mask, bool value);
[[nodiscard]] unsigned lane();

/// An atomic access follows: it is checked as one.
void atomic_access_to(const void* p, std::size_t bytes);

/// The dynamic shared memory of the block.
[[nodiscard]] void* dynamic_shared_memory();

}  // namespace fakegpu
