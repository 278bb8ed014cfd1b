#pragma once
/// \file How a kernel is launched, and grids of a size that fits the device.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <elrun/device.hpp>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/preload.hpp"

namespace elrun::inline v0 {

inline constexpr unsigned block_threads = 256;
[[nodiscard]] inline cudaStream_t stream_of(Stream stream) { return cuda_stream(stream); }

/// Blocks in which each of `threads` would have a thread of its own.
[[nodiscard]] constexpr std::uint64_t blocks_of(std::uint64_t threads) { return (threads + block_threads - 1) / block_threads; }

template <auto kernel>
struct Launch;

template <class... Parameters, void (*kernel)(Parameters...)>
struct Launch<kernel> {
  static const char* signature() { return __PRETTY_FUNCTION__; }
  static inline KnownKernel known{reinterpret_cast<const void*>(kernel), signature()};
  static void on(unsigned grid, unsigned block, std::size_t shared, cudaStream_t stream, Parameters... arguments) {
    void* pointers[] = {const_cast<void*>(static_cast<const volatile void*>(&arguments))...};
    // What is launched anywhere is known before main.
    if (const cudaError_t said = cudaLaunchKernel(known.stub(), dim3{grid}, dim3{block}, pointers, shared, stream); said != cudaSuccess)
      cuda_failed(said, ("the launch of " + known.name()).c_str(), __FILE__, __LINE__);
  }
};

/// Launches `kernel` with a grid of `grid` blocks of `block` threads and `shared` bytes of dynamic shared memory. In place of <<<>>>: the
/// kernel is known here by name, so another compilation of the same file can make a twin of it (tests/fakegpu).
template <auto kernel, class... Arguments>
void launch(unsigned grid, unsigned block, std::size_t shared, cudaStream_t stream, const Arguments&... arguments) {
#ifdef ELRUN_TWIN
  ELRUN_TWIN(kernel);
#else
  Launch<kernel>::on(grid, block, shared, stream, arguments...);
#endif
}

/// How many blocks to launch for `blocks` of work: no more than the current device holds at one time; the kernel's stride does the rest. Each block has
/// `block_threads` threads and no dynamic shared memory.
template <auto kernel>
[[nodiscard]] unsigned grid_of(std::uint64_t blocks) {
#ifdef ELRUN_TWIN
  return 0;
#else
  return static_cast<unsigned>(std::min<std::uint64_t>(blocks, Launch<kernel>::known.blocks_at_once(block_threads)));
#endif
}

/// The dynamic shared memory of the block, as many bytes as launch() says. In place of `extern __shared__`.
template <class T>
__device__ T* dynamic_shared() {
#ifdef ELRUN_TWIN
  return static_cast<T*>(ELRUN_TWIN_DYNAMIC_SHARED);
#else
  extern __shared__ __align__(16) unsigned char elrun_dynamic_shared[];
  return reinterpret_cast<T*>(elrun_dynamic_shared);
#endif
}

}  // namespace elrun::inline v0
