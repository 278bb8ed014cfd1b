#pragma once
/// \file The sum of squares of a granule by one warp, in the order that kernels/granule.hpp fixes.

#include <cstdint>

#include "kernels/cuda/wide.cuh"
#include "kernels/granule.hpp"

namespace elrun::inline v0 {

inline constexpr unsigned warp_threads = 32;
static_assert(warp_threads == granule_lanes && block_threads % warp_threads == 0);
inline constexpr std::uint64_t granule_row = warp_threads * four;  ///< Elements of one access by a warp.
static_assert(granule % granule_row == 0);

/// From 16-byte loads: thread t brings elements 4t to 4t + 3 of each row of 128. As thread 8r + c it brings elements of lanes 4c to 4c + 3 in the r-th of
/// the row's four times 32 elements. A lane's squares are added in the order of its elements, so the threads of one c exchange theirs: thread 8r + c then has
/// the four elements of lane 4c + r.
class RowSquares {
 public:
  /// One row more, by all threads of the warp.
  __device__ void add(float4 row) {
    const bool upper = (threadIdx.x & 16u) != 0, odd = (threadIdx.x & 8u) != 0;
    exchange(upper, 16, row.x, row.z), exchange(upper, 16, row.y, row.w);
    exchange(odd, 8, row.x, row.y), exchange(odd, 8, row.z, row.w);
    for (const float x : {row.x, row.y, row.z, row.w}) sum_ = SquareFunctor{}(sum_, x);
  }
  /// The sum of the granule, in thread 0 of the warp. Lanes 16, 8 and 4 apart are threads 4, 2 and 1 apart, and lanes 2 and 1 apart are threads 16 and 8.
  __device__ float total() const {
    float sum = sum_;
    for (const unsigned apart : {4u, 2u, 1u, 16u, 8u}) sum += __shfl_down_sync(0xffffffffu, sum, apart);
    return canonical(sum);
  }

 private:
  /// The thread whose bit is set gives `low` for the other's `high`.
  __device__ static void exchange(bool set, int with, float& low, float& high) {
    const float got = __shfl_xor_sync(0xffffffffu, set ? low : high, with);
    (set ? low : high) = got;
  }
  float sum_ = 0;
};

/// From elements that come one by one: thread l brings those of lane l.
class LaneSquares {
 public:
  __device__ void add(float x) { sum_ = SquareFunctor{}(sum_, x); }
  __device__ float total() const {
    float sum = sum_;
    for (unsigned apart = warp_threads / 2; apart != 0; apart /= 2) sum += __shfl_down_sync(0xffffffffu, sum, apart);
    return canonical(sum);
  }

 private:
  float sum_ = 0;
};

}  // namespace elrun::inline v0
