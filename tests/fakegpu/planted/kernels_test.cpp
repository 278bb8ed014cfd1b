// The interpreter and the checker inside a launch: each right kernel runs without a report, each bug in a kernel is found, whatever the seed.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/check.hpp"
#include "tests/fakegpu/planted/kernels.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::planted;

namespace {

constexpr std::uint64_t seeds = 20;
constexpr std::uint64_t count = 250;  // no multiple of a block

template <class T>
T* allocated(std::uint64_t n) {
  T* p = nullptr;
  ELRUN_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&p), n * sizeof(T)));
  return p;
}

/// Runs one kernel from a fresh device. The reports, in one text.
std::string reports_of(const KernelCase& kernel, std::uint64_t seed) {
  fakegpu::set_seed(seed);
  const std::vector<float> in(count, 1.5f);
  const Arrays arrays{allocated<float>(count), allocated<float>(count), allocated<std::uint64_t>(1), count};
  ELRUN_CUDA_CHECK(cudaMemcpy(const_cast<float*>(arrays.in), in.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  ELRUN_CUDA_CHECK(cudaMemset(arrays.counter, 0, sizeof(std::uint64_t)));
  kernel.launch(arrays, Stream{{DeviceKind::cuda, 0}, nullptr});
  const cudaError_t ended = cudaDeviceSynchronize();
  std::string text;
  for (const std::string& report : fakegpu::take_reports()) text += report + '\n';
  CHECK((ended == cudaSuccess || !text.empty()));
  ELRUN_CUDA_CHECK(cudaDeviceReset());
  return text;
}

}  // namespace

TEST_CASE("a right kernel gives no report, a bug in one is found with every seed", "[devices]") {
  for (const KernelCase& kernel : kernel_cases()) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      INFO(kernel.name << ", seed " << seed);
      const std::string text = reports_of(kernel, seed);
      if (kernel.found.empty()) CHECK(text == "");
      else CHECK_THAT(text, Catch::Contains(std::string{kernel.found}));
    }
  }
}

TEST_CASE("a right kernel gives the same bits with every seed", "[devices]") {
  std::vector<std::vector<float>> results;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    std::vector<float> all;
    for (const KernelCase& kernel : kernel_cases()) {
      if (!kernel.found.empty()) continue;
      fakegpu::set_seed(seed);
      std::vector<float> in(count), out(count);
      for (std::uint64_t i = 0; i < count; ++i) in[i] = static_cast<float>(i % 7);
      const Arrays arrays{allocated<float>(count), allocated<float>(count), allocated<std::uint64_t>(1), count};
      ELRUN_CUDA_CHECK(cudaMemcpy(const_cast<float*>(arrays.in), in.data(), count * sizeof(float), cudaMemcpyHostToDevice));
      ELRUN_CUDA_CHECK(cudaMemset(arrays.out, 0, count * sizeof(float)));
      ELRUN_CUDA_CHECK(cudaMemset(arrays.counter, 0, sizeof(std::uint64_t)));
      kernel.launch(arrays, Stream{{DeviceKind::cuda, 0}, nullptr});
      ELRUN_CUDA_CHECK(cudaMemcpy(out.data(), arrays.out, count * sizeof(float), cudaMemcpyDeviceToHost));
      std::uint64_t counted = 0;
      ELRUN_CUDA_CHECK(cudaMemcpy(&counted, arrays.counter, sizeof counted, cudaMemcpyDeviceToHost));
      all.insert(all.end(), out.begin(), out.end());
      all.push_back(static_cast<float>(counted));
      ELRUN_CUDA_CHECK(cudaDeviceReset());
    }
    results.push_back(std::move(all));
  }
  CHECK(std::ranges::all_of(results, [&](const auto& r) { return r == results.front(); }));
  CHECK(fakegpu::take_reports().empty());
}
