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

/// A copy of 16 bytes into shared memory that the thread began. Whether it is made at once, or later, is the seed's choice.
struct AsyncCopy {
  void* to;
  const void* from;
};
/// False: the copy is kept for later.
[[nodiscard]] bool is_made_at_once(const AsyncCopy& copy);
/// The thread's copies since the last end are a group.
void end_group_of_copies();
/// Of the thread's groups but the newest `left`: the next copy to be made. Null addresses: all are made.
[[nodiscard]] AsyncCopy next_copy(unsigned left);

/// The dynamic shared memory of the block.
[[nodiscard]] void* dynamic_shared_memory();

}  // namespace fakegpu
