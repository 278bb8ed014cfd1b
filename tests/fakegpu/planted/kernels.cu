#include "tests/fakegpu/planted/kernels.hpp"

#include "kernels/cuda/launch.cuh"

namespace elrun::planted {
namespace {

constexpr unsigned threads = 64, warp = 32;
constexpr unsigned blocks = 4;
constexpr unsigned width = 4;

enum class Bug { none, first, second };

// --- Sums of a block by way of shared memory. First: the barrier before the others' values are read is gone. Second: the one between rounds.
template <Bug bug>
__global__ void block_sum(Arrays a) {
  __shared__ float partial[threads];
  const std::uint64_t i = std::uint64_t{blockIdx.x} * threads + threadIdx.x;
  partial[threadIdx.x] = i < a.count ? a.in[i] : 0;
  if (bug != Bug::first) __syncthreads();
  for (unsigned apart = threads / 2; apart != 0; apart /= 2) {
    if (threadIdx.x < apart) partial[threadIdx.x] += partial[threadIdx.x + apart];
    if (bug != Bug::second) __syncthreads();
  }
  if (threadIdx.x == 0) a.out[blockIdx.x] = partial[0];
}

// --- The same in dynamic shared memory. First: more of it is used than the launch has asked for.
template <Bug bug>
__global__ void dynamic_sum(Arrays a) {
  float* partial = dynamic_shared<float>();
  partial[threadIdx.x + (bug == Bug::first ? 1 : 0)] = a.in[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (unsigned t = 0; t < threads; ++t) sum += partial[t + (bug == Bug::first ? 1 : 0)];
    a.out[blockIdx.x] = sum;
  }
}

// --- Lanes exchange through shared memory. First: without __syncwarp.
template <Bug bug>
__global__ void warp_rotate(Arrays a) {
  __shared__ float values[threads];
  values[threadIdx.x] = a.in[threadIdx.x];
  if (bug != Bug::first) __syncwarp();
  const unsigned first = threadIdx.x / warp * warp;
  if (blockIdx.x == 0) a.out[threadIdx.x] = values[first + (threadIdx.x + 1) % warp];
}

// --- Reads of shared memory. First: half of it was never written in this block.
template <Bug bug>
__global__ void shared_halves(Arrays a) {
  __shared__ float values[threads];
  if (bug == Bug::none || threadIdx.x < threads / 2) values[threadIdx.x] = a.in[threadIdx.x];
  __syncthreads();
  if (blockIdx.x == 0) a.out[threadIdx.x] = values[threads - 1 - threadIdx.x];
}

// --- A barrier. First: half of the threads do not come to it. Second: they have ended before.
template <Bug bug>
__global__ void meet(Arrays a) {
  if (bug == Bug::second && threadIdx.x >= warp) return;
  if (bug != Bug::first || threadIdx.x < warp) __syncthreads();
  else __syncwarp();
  if (blockIdx.x == 0) a.out[threadIdx.x] = a.in[threadIdx.x];
}

// --- Lanes add up. First: those of one half call another function with the same mask.
template <Bug bug>
__global__ void warp_sum(Arrays a) {
  float sum = a.in[threadIdx.x];
  if (bug == Bug::first && threadIdx.x % warp >= warp / 2) __syncwarp();
  else
    for (unsigned apart = warp / 2; apart != 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, static_cast<int>(apart));
  const unsigned positive = __ballot_sync(0xffffffffu, sum > 0);
  if (blockIdx.x == 0) a.out[threadIdx.x] = positive == 0xffffffffu ? sum : -1.0f;
}

// --- A thread per element. First: the test for the tail is gone. Second: two threads write one element.
template <Bug bug>
__global__ void copy_each(Arrays a) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * threads + threadIdx.x;
  if (bug != Bug::first && i >= a.count) return;
  a.out[bug == Bug::second ? i / 2 : i] = a.in[i];
}

// --- Four elements at a time. First: without the test for their alignment.
template <Bug bug>
__global__ void copy_fours(Arrays a) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * threads + threadIdx.x;
  const float* in = a.in + 1;
  if (i >= a.count / width - 1) return;
  if (bug == Bug::first || reinterpret_cast<std::uintptr_t>(in) % sizeof(float4) == 0) {
    const float4 four = reinterpret_cast<const float4*>(in)[i];
    reinterpret_cast<float4*>(a.out)[i] = four;
  } else {
    for (unsigned k = 0; k < width; ++k) a.out[i * width + k] = in[i * width + k];
  }
}

// --- A counter. First: without atomics. Second: read by one block while others still count.
template <Bug bug>
__global__ void count_all(Arrays a) {
  if (bug == Bug::first) *a.counter += 1;
  else atomicAdd(reinterpret_cast<unsigned long long*>(a.counter), 1ull);
  if (bug == Bug::second && threadIdx.x == 0) a.out[blockIdx.x] = static_cast<float>(*a.counter);
}

// --- In place. First: each thread reads its neighbour's element, which that one overwrites.
template <Bug bug>
__global__ void shift_in_place(Arrays a) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * threads + threadIdx.x;
  if (i + 1 >= a.count) return;
  a.out[i] = a.out[bug == Bug::first ? i + 1 : i] * 2;
}

template <auto kernel, unsigned shared = 0, bool fills = false>
void run(const Arrays& arrays, Stream stream) {
  if (fills)
    launch<copy_each<Bug::none>>((static_cast<unsigned>(arrays.count) + threads - 1) / threads, threads, 0, stream_of(stream), arrays);
  launch<kernel>(blocks, threads, shared, stream_of(stream), arrays);
}

constexpr KernelCase cases[] = {
    {"block sum", run<block_sum<Bug::none>>, ""},
    {"block sum without its first barrier", run<block_sum<Bug::first>>, "race inside one launch"},
    {"block sum without barriers between rounds", run<block_sum<Bug::second>>, "race inside one launch"},
    {"dynamic shared memory", run<dynamic_sum<Bug::none>, threads * sizeof(float)>, ""},
    {"more dynamic shared memory than there is", run<dynamic_sum<Bug::first>, threads * sizeof(float)>, "of the block's shared memory"},
    {"lanes exchange", run<warp_rotate<Bug::none>>, ""},
    {"lanes exchange without __syncwarp", run<warp_rotate<Bug::first>>, "race inside one launch"},
    {"shared memory", run<shared_halves<Bug::none>>, ""},
    {"shared memory that is not written", run<shared_halves<Bug::first>>, "reads what nothing has written"},
    {"a barrier", run<meet<Bug::none>>, ""},
    {"a barrier that half of the threads do not reach", run<meet<Bug::first>>, "the block stands still"},
    {"a barrier after half of the threads have ended", run<meet<Bug::second>>, "the block stands still"},
    {"warp sum", run<warp_sum<Bug::none>>, ""},
    {"lanes that meet in different calls", run<warp_sum<Bug::first>>, "meet in different calls"},
    {"a copy", run<copy_each<Bug::none>>, ""},
    {"a copy without the test for its tail", run<copy_each<Bug::first>>, "outside of allocation"},
    {"a copy of which two threads write one element", run<copy_each<Bug::second>>, "race inside one launch"},
    {"a copy in fours", run<copy_fours<Bug::none>>, ""},
    {"a copy in fours without the test for alignment", run<copy_fours<Bug::first>>, "misaligned"},
    {"a counter", run<count_all<Bug::none>>, ""},
    {"a counter without atomics", run<count_all<Bug::first>>, "race inside one launch"},
    {"a counter that is read while others count", run<count_all<Bug::second>>, "race inside one launch"},
    {"in place", run<shift_in_place<Bug::none>, 0, true>, ""},
    {"in place, reading what a neighbour writes", run<shift_in_place<Bug::first>, 0, true>, "race inside one launch"},
};

}  // namespace

std::span<const KernelCase> kernel_cases() { return cases; }

}  // namespace elrun::planted
