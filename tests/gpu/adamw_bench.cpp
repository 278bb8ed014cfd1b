// How close does the fused AdamW come to the memory it must move? The bound is a copy on the same device, same run.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "kernels/cuda/check.hpp"
#include "kernels/fold.hpp"
#include "kernels/granule.hpp"
#include "tests/gpu/update_table.hpp"

using namespace elrun;

namespace {

constexpr std::uint64_t elements = 1u << 28;  // many times any cache; one GiB per array
constexpr int repeats = 20;

/// Milliseconds, the median of `repeats` after a warm-up.
template <class Work>
float median_ms(Work work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  ELRUN_CUDA_CHECK(cudaEventCreate(&begin));
  ELRUN_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < repeats + 3; ++i) {
    ELRUN_CUDA_CHECK(cudaEventRecord(begin));
    work();
    ELRUN_CUDA_CHECK(cudaEventRecord(end));
    ELRUN_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    ELRUN_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double gb_per_s(std::uint64_t bytes_per_element, float ms) {
  return static_cast<double>(bytes_per_element * elements) / static_cast<double>(ms) * 1e-6;
}

template <class T>
DeviceSpan<T> filled(std::uint64_t count) {
  T* data = nullptr;
  ELRUN_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
  ELRUN_CUDA_CHECK(cudaMemset(data, 0x3c, count * sizeof(T)));  // small positive numbers, no zeros
  return {data, count};
}

}  // namespace

int main() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return std::puts("SKIPPED: no device"), 0;
  const auto p = filled<float>(elements), m = filled<float>(elements), v = filled<float>(elements), g = filled<float>(elements);
  const auto rounded = filled<bf16>(elements);
  const auto sums = filled<float>(granule_count(elements));
  const test::UpdateTableOnDevice table{{{.size = elements, .decays = 1}}};
  const Stream stream{{DeviceKind::cuda, 0}, nullptr};
  const AdamWStep step{.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .bias1 = 0.1f, .bias2 = 0.05f};

  const double copy = gb_per_s(
      8, median_ms([&] { ELRUN_CUDA_CHECK(cudaMemcpyAsync(m.data, g.data, elements * sizeof(float), cudaMemcpyDeviceToDevice)); }));
  const auto print = [&](const char* what, double rate) {
    std::printf("%s: %.0f GB/s median of %d (bound: copy %.0f GB/s; %.0f %%)\n", what, rate, repeats, copy, rate / copy * 100);
  };
  print("adamw, 28 bytes per element", gb_per_s(28, median_ms([&] {
                                                  update_async({p.data, {m.data, v.data}, g.data}, table.view(), step, stream);
                                                })));
  print("adamw and bf16, 30 bytes per element",
        gb_per_s(30, median_ms([&] {
                   update_async({p.data, {m.data, v.data}, g.data, rounded.data}, table.view(), step, stream);
                 })));
  print("fold, 12 bytes per element", gb_per_s(12, median_ms([&] { add_into_async(p, g, stream); })));
  print("sums of squares, 4 bytes per element", gb_per_s(4, median_ms([&] { sums_of_squares_async(g, sums, stream); })));
  ELRUN_CUDA_CHECK(cudaDeviceSynchronize());
}
