// Kernels whose answers are known: each call that the interpreter offers, for grids and blocks of one, two and three dimensions.

#include "kernels/cuda/launch.cuh"
#include "tests/fakegpu/planted/answers.hpp"

namespace elrun::planted {
namespace {

/// A number for each thread that says where it is.
__global__ void where(std::uint64_t* out) {
  const std::uint64_t block = (std::uint64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const std::uint64_t thread = (std::uint64_t{threadIdx.z} * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const std::uint64_t size = std::uint64_t{blockDim.x} * blockDim.y * blockDim.z;
  out[block * size + thread] = block * 1000000 + threadIdx.z * 10000 + threadIdx.y * 100 + threadIdx.x;
}

/// One block of two warps and a part of a third; the word of thread t begins at t * answers_per_thread.
__global__ void lanes(std::uint64_t* out) {
  const unsigned t = threadIdx.x, lane = t % 32;
  const unsigned mask = t < 64 ? 0xffffffffu : (1u << (blockDim.x - 64)) - 1;
  std::uint64_t* mine = out + std::uint64_t{t} * answers_per_thread;
  mine[0] = __shfl_sync(mask, t, 3);
  mine[1] = __shfl_down_sync(mask, t, 2, 4);
  mine[2] = __shfl_up_sync(mask, t, 1, 4);
  mine[3] = __shfl_xor_sync(mask, t, 1);
  mine[4] = __ballot_sync(mask, static_cast<int>(lane % 2));
  mine[5] = static_cast<std::uint64_t>(__any_sync(mask, t == 40)) * 2 + static_cast<std::uint64_t>(__all_sync(mask, t < 64));
  mine[6] = static_cast<std::uint64_t>(__syncthreads_count(static_cast<int>(t % 3 == 0)));
  mine[7] = static_cast<std::uint64_t>(__syncthreads_or(t == 5)) * 2 + static_cast<std::uint64_t>(__syncthreads_and(t != 5));
}

__global__ void atomics(unsigned* out) {
  const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&out[0], t);
  atomicMax(&out[1], t);
  atomicOr(&out[2], 1u << t % 32);
  atomicCAS(&out[3], 0u, 7u);
  atomicExch(&out[4], 9u);
}

}  // namespace

void where_async(Extent grid, Extent block, std::uint64_t* out, Stream stream) {
  void* arguments[] = {&out};
#ifdef ELRUN_TWIN
  ELRUN_TWIN(where);
#else
  ELRUN_CUDA_CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(where), dim3{grid.x, grid.y, grid.z}, dim3{block.x, block.y, block.z},
                                    arguments, 0, static_cast<cudaStream_t>(stream.handle())));
#endif
}

void lanes_async(unsigned threads, std::uint64_t* out, Stream stream) { launch<lanes>(1, threads, 0, stream_of(stream), out); }

void atomics_async(unsigned blocks, unsigned threads, unsigned* out, Stream stream) {
  launch<atomics>(blocks, threads, 0, stream_of(stream), out);
}

}  // namespace elrun::planted
