#pragma once
/// \file The grid-stride kernel that runs a functor, and grids of a size that fits the device.

#include <algorithm>
#include <cstdint>

#include <elrun/device.hpp>

#include "kernels/cuda/check.hpp"

namespace elrun::inline v0 {

inline constexpr unsigned block_threads = 256;
inline constexpr std::uint64_t grid_blocks_max = 132 * 16;  // enough to fill any device of today; the stride does the rest

[[nodiscard]] inline cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle()); }

[[nodiscard]] inline unsigned blocks_for(std::uint64_t threads) {
  return static_cast<unsigned>(std::min((threads + block_threads - 1) / block_threads, grid_blocks_max));
}

template <class Body>
__global__ void __launch_bounds__(block_threads) for_each_kernel(std::uint64_t count, Body body) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * block_threads;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * block_threads + threadIdx.x; i < count; i += stride) body(i);
}

/// body(i) for every i below `count`, in any order. Nothing is launched for nothing.
template <class Body>
void for_each_async(std::uint64_t count, const Body& body, Stream stream) {
  if (count == 0) return;
  for_each_kernel<<<blocks_for(count), block_threads, 0, stream_of(stream)>>>(count, body);
  ELRUN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace elrun::inline v0
