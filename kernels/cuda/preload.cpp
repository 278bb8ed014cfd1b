#include "kernels/cuda/preload.hpp"

#include <algorithm>

#include "kernels/cuda/check.hpp"

namespace elrun::inline v0 {
namespace {

constinit KnownKernel* newest = nullptr;  // of a list; there before any kernel enters itself

}  // namespace

KnownKernel::KnownKernel(const void* stub, const char* signature) noexcept : stub_{stub}, signature_{signature}, next_{newest} {
  newest = this;
}

// g++: "... [with Parameters = {...}; void (* kernel)(Parameters ...) = space::{anonymous}::name<arguments>]"; clang: "... [kernel = &(anonymous namespace)::name]"
std::string KnownKernel::name_in(std::string_view signature) {
  const auto of_gcc = signature.rfind("kernel)("), parameter = of_gcc != signature.npos ? of_gcc : signature.rfind("kernel = ");
  const auto equals = parameter == signature.npos ? signature.npos : signature.find("= ", parameter);
  if (equals == signature.npos) return std::string{signature};
  std::string_view name = signature.substr(equals + 2);
  name = name.substr(0, name.find_first_of("<;]"));
  if (const auto space = name.rfind("::"); space != name.npos) name = name.substr(space + 2);
  return std::string{name};
}

unsigned KnownKernel::blocks_at_once(unsigned threads) {
  int device = 0;
  ELRUN_CUDA_CHECK(cudaGetDevice(&device));
  const auto index = static_cast<std::size_t>(device);
  if (index < devices_max)
    if (const unsigned known = blocks_at_once_[index].load(std::memory_order_relaxed); known != 0) return known;
  int blocks = 0, multiprocessors = 0;
  ELRUN_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, stub_, static_cast<int>(threads), 0));
  ELRUN_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const auto at_once = static_cast<unsigned>(std::max(blocks * multiprocessors, 1));
  if (index < devices_max) blocks_at_once_[index].store(at_once, std::memory_order_relaxed);
  return at_once;
}

std::size_t preload_kernels() {
  std::size_t count = 0;
  for (const KnownKernel* kernel = newest; kernel != nullptr; kernel = kernel->next_, ++count) {
    cudaFuncAttributes attributes{};
    if (const cudaError_t said = cudaFuncGetAttributes(&attributes, kernel->stub_); said != cudaSuccess)
      cuda_failed(said, ("the loading of " + kernel->name()).c_str(), __FILE__, __LINE__);
  }
  return count;
}

}  // namespace elrun::inline v0
