#pragma once
/// \file ELRUN_CUDA_CHECK: an error of the CUDA runtime becomes an Error that names expression, place and device.

#include <cuda_runtime_api.h>

namespace elrun::inline v0 {
/// Throws Error. A device that failed a launch is lost to this process.
[[noreturn]] void cuda_failed(cudaError_t error, const char* expression, const char* file, int line);
}  // namespace elrun::inline v0

#define ELRUN_CUDA_CHECK(expression)                                                \
  do {                                                                              \
    if (const cudaError_t elrun_error_ = (expression); elrun_error_ != cudaSuccess) \
      ::elrun::cuda_failed(elrun_error_, #expression, __FILE__, __LINE__);          \
  } while (false)
