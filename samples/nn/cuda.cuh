#pragma once
/// \file What a program that brings kernels of its own does beside them: it checks CUDA's answers, launches by name, and loads every kernel before
/// the first collective (a kernel that is loaded beside one may wait for it without an end).

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

namespace nn {

/// Throws elrun::Error that names the call.
void check(cudaError_t error, const char* call);

/// Every kernel of this program, entered before main.
class KnownKernel {
 public:
  explicit KnownKernel(const void* kernel) noexcept;
  static void load_all();

 private:
  const void* kernel_;
  const KnownKernel* next_;
};

/// Of the current device: how many blocks of this kernel it holds at one time, at least 1. Lets the kernel have so much dynamic shared memory.
[[nodiscard]] unsigned resident_blocks(const void* kernel, unsigned block, std::size_t shared);
/// Of the current device: the most dynamic shared memory that a block can be let have.
[[nodiscard]] std::size_t most_shared_bytes();

template <auto kernel>
struct Launch;
template <class... Parameters, void (*kernel)(Parameters...)>
struct Launch<kernel> {
  static inline const KnownKernel known{reinterpret_cast<const void*>(kernel)};
  static void on(unsigned grid, unsigned block, std::size_t shared, cudaStream_t stream, Parameters... arguments) {
    (void)&known;
    void* pointers[] = {const_cast<void*>(static_cast<const volatile void*>(&arguments))...};
    check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3{grid}, dim3{block}, pointers, shared, stream), "cudaLaunchKernel");
  }
};

/// In place of <<<>>>: the kernel is known here by name, so that the tests can run it without a GPU (tests/fakegpu).
template <auto kernel, class... Arguments>
void launch(unsigned grid, unsigned block, cudaStream_t stream, const Arguments&... arguments) {
#ifdef ELRUN_TWIN
  ELRUN_TWIN(kernel);
#else
  Launch<kernel>::on(grid, block, 0, stream, arguments...);
#endif
}
/// With as many blocks as the current device holds at one time, at most `grid`: the kernel's stride does the rest. Each has `shared` bytes of dynamic shared
/// memory, which may be more than the 48 KiB that a kernel gets unasked.
template <auto kernel, class... Arguments>
void launch_resident(std::size_t grid, unsigned block, std::size_t shared, cudaStream_t stream, const Arguments&... arguments) {
#ifdef ELRUN_TWIN
  ELRUN_TWIN(kernel);
#else
  const unsigned at_once = resident_blocks(reinterpret_cast<const void*>(kernel), block, shared);
  Launch<kernel>::on(static_cast<unsigned>(std::min<std::size_t>(grid, at_once)), block, shared, stream, arguments...);
#endif
}

inline constexpr unsigned block_threads = 256;

// Behind a kernel's threads in __launch_bounds__: of this kernel `blocks` are on a multiprocessor at once, so it may have the registers of that many. Without it nvcc 13.5 aims at more of them on sm_100, and spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define NN_BLOCKS_AT_ONCE(blocks) , blocks
#else
#define NN_BLOCKS_AT_ONCE(blocks)
#endif

/// Enough blocks to fill a device; loops in the kernels do the rest.
[[nodiscard]] inline unsigned blocks_for(std::size_t threads) {
  return static_cast<unsigned>(std::clamp<std::size_t>((threads + block_threads - 1) / block_threads, 1, 2048));
}

}  // namespace nn
