#pragma once
/// \file Kernels whose answers are known (answers.cu).

#include <cstdint>

#include <elrun/device.hpp>

namespace elrun::planted {

struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

/// out[block * threads of a block + thread] = block * 1000000 + thread's z * 10000 + y * 100 + x. The product's own checks of
/// the stream are not asked: the runtime gets what is given here.
void where_async(Extent grid, Extent block, std::uint64_t* out, Stream stream);

inline constexpr unsigned answers_per_thread = 8;
/// One block of 65 to 95 threads: what calls of its warp and of its block gave each thread.
void lanes_async(unsigned threads, std::uint64_t* out, Stream stream);

/// Five words: the sum and the maximum of the threads' numbers, the bits of their numbers modulo 32, 7, 9.
void atomics_async(unsigned blocks, unsigned threads, unsigned* out, Stream stream);

}  // namespace elrun::planted
