#include "kernels/cuda/launch.cuh"
#include "kernels/state_hash.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

__global__ void __launch_bounds__(block_threads)
    mix_sum_kernel(const unsigned char* data, std::uint64_t bytes, std::uint64_t first_index, unsigned long long* sum) {
  const std::uint64_t whole = bytes / 8;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * block_threads + threadIdx.x;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * block_threads;
  std::uint64_t mine = 0;
  for (std::uint64_t i = first; i < whole; i += stride) mine += Mix{}(reinterpret_cast<const std::uint64_t*>(data)[i], first_index + i);
  if (first == 0 && bytes % 8 != 0) {
    std::uint64_t word = 0;
    for (std::uint64_t b = whole * 8; b < bytes; ++b) word |= std::uint64_t{data[b]} << (b % 8 * 8);
    mine += Mix{}(word, first_index + whole);
  }
  for (unsigned apart = 16; apart != 0; apart /= 2) mine += __shfl_down_sync(0xffffffffu, mine, apart);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);  // integers: the order of blocks changes nothing
}

}  // namespace

void mix_sum_async(DeviceSpan<const std::byte> data, std::uint64_t first_word, std::uint64_t salt, std::uint64_t* sum, Stream stream) {
  ELRUN_ASSERT(reinterpret_cast<std::uintptr_t>(data.data) % 8 == 0);
  if (data.size == 0) return;
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  launch<mix_sum_kernel>(grid_of<mix_sum_kernel>(blocks_of((data.size + 7) / 8)), block_threads, 0, stream_of(stream),
                         reinterpret_cast<const unsigned char*>(data.data), data.size, salt + first_word,
                         reinterpret_cast<unsigned long long*>(sum));
}

}  // namespace elrun::inline v0
