#pragma once
/// \file The table of an optimizer phase, on the current device.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/check.hpp"
#include "kernels/update.hpp"

namespace elrun::test {

class UpdateTableOnDevice {
 public:
  explicit UpdateTableOnDevice(std::vector<UpdateRun> runs) : size_{static_cast<std::uint32_t>(runs.size())}, tiles_{count_tiles(runs)} {
    ELRUN_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&runs_), (runs.size() + 1) * sizeof(UpdateRun)));
    ELRUN_CUDA_CHECK(cudaMemcpy(runs_, runs.data(), runs.size() * sizeof(UpdateRun), cudaMemcpyHostToDevice));
  }
  UpdateTableOnDevice(const UpdateTableOnDevice&) = delete;
  UpdateTableOnDevice& operator=(const UpdateTableOnDevice&) = delete;
  ~UpdateTableOnDevice() { cudaFree(runs_); }
  [[nodiscard]] UpdateTable view() const { return {runs_, size_, tiles_}; }

 private:
  UpdateRun* runs_ = nullptr;
  std::uint32_t size_;
  std::uint64_t tiles_;
};

}  // namespace elrun::test
