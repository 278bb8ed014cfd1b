#pragma once
/// \file ELRUN_CUDA_CHECK: an error of the CUDA runtime becomes an Error that names device, call, place and remedy. And the one way from a
/// Stream to CUDA's.

#include <cuda_runtime_api.h>

#include <elrun/device.hpp>
#include <elrun/failure.hpp>

namespace elrun::inline v0 {

/// What `error` means (errors.hpp), with what the runtime says of it and of this thread's device. Clears the thread's last error, so that
/// nobody else is told of it.
[[nodiscard]] Failure cuda_failure(cudaError_t error, const char* call, const char* file, int line);
/// Throws Error.
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);

/// The stream that `stream` is a view of. Throws Error (`internal`) for the host's stream, whose null handle CUDA would take for its default
/// stream, and for one of another device than this thread's current one (lib/device/current_device.hpp).
[[nodiscard]] cudaStream_t cuda_stream(Stream stream);

}  // namespace elrun::inline v0

#define ELRUN_CUDA_CHECK(expression)                                                \
  do {                                                                              \
    if (const cudaError_t elrun_error_ = (expression); elrun_error_ != cudaSuccess) \
      ::elrun::cuda_failed(elrun_error_, #expression, __FILE__, __LINE__);          \
  } while (false)
