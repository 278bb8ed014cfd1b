#include "kernels/cuda/launch.cuh"
#include "kernels/granule.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

constexpr unsigned warp_threads = 32;
static_assert(warp_threads == granule_lanes && block_threads % warp_threads == 0);

// A warp per granule, a thread per lane: the loads of a warp lie side by side.
__global__ void __launch_bounds__(block_threads)
    sums_of_squares_kernel(const float* data, std::uint64_t count, float* sums, std::uint64_t granules) {
  const unsigned lane = threadIdx.x % warp_threads;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * (block_threads / warp_threads);
  for (std::uint64_t g = (std::uint64_t{blockIdx.x} * block_threads + threadIdx.x) / warp_threads; g < granules; g += stride) {
    const std::uint64_t first = g * granule;
    const std::uint64_t end = first + granule < count ? first + granule : count;
    float sum = 0;
    if (end == first + granule) {
#pragma unroll
      for (std::uint64_t row = 0; row < granule; row += granule_lanes) sum = SquareFunctor{}(sum, data[first + row + lane]);
    } else {
      for (std::uint64_t i = first + lane; i < end; i += granule_lanes) sum = SquareFunctor{}(sum, data[i]);
    }
    for (unsigned apart = warp_threads / 2; apart != 0; apart /= 2) sum += __shfl_down_sync(0xffffffffu, sum, apart);
    if (lane == 0) sums[g] = canonical(sum);
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
