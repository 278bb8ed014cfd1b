#include "kernels/granule.hpp"

#include "kernels/cuda/granule.cuh"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

// A warp per granule. Loads are 16 bytes wide where the granule is whole and the data is on a border.
__global__ void __launch_bounds__(block_threads)
    sums_of_squares_kernel(const float* data, std::uint64_t count, float* sums, std::uint64_t granules) {
  const unsigned lane = threadIdx.x % warp_threads;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * (block_threads / warp_threads);
  const bool wide = on_border(data, 16);
  for (std::uint64_t g = (std::uint64_t{blockIdx.x} * block_threads + threadIdx.x) / warp_threads; g < granules; g += stride) {
    const float* const from = data + g * granule;
    const std::uint64_t size = count - g * granule < granule ? count - g * granule : granule;
    float total;
    if (wide && size == granule) {
      float4 rows[granule / granule_row];
#pragma unroll
      for (unsigned r = 0; r < granule / granule_row; ++r) rows[r] = load_wide<float4>(from + r * granule_row + lane * four);
      RowSquares squares;
#pragma unroll
      for (unsigned r = 0; r < granule / granule_row; ++r) squares.add(rows[r]);
      total = squares.total();
    } else {
      LaneSquares squares;
      for (std::uint64_t i = lane; i < size; i += warp_threads) squares.add(from[i]);
      total = squares.total();
    }
    if (lane == 0) sums[g] = total;
  }
}

}  // namespace

void sums_of_squares_async(DeviceSpan<const float> data, DeviceSpan<float> sums, Stream stream) {
  ELRUN_ASSERT(sums.size == granule_count(data.size));
  if (sums.size == 0) return;
  launch<sums_of_squares_kernel>(grid_of<sums_of_squares_kernel>(blocks_of(sums.size * warp_threads)), block_threads, 0, stream_of(stream),
                                 data.data, data.size, sums.data, sums.size);
}

}  // namespace elrun::inline v0
