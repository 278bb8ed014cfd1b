#pragma once
/// \file What the entry points share.

#include <cuda_runtime_api.h>

#include <string>

#include "tests/fakegpu/runtime/runtime.hpp"

namespace fakegpu {

/// An H100, as far as programs ask.
namespace device_facts {
inline constexpr int threads_of_multiprocessor = 2048;
inline constexpr int block_threads_max = 1024;
inline constexpr int shared_bytes = 48 << 10;
inline constexpr int shared_bytes_opt_in = 227 << 10;
inline constexpr int shared_bytes_of_multiprocessor = 228 << 10;
}  // namespace device_facts

/// The error with which the current device was lost; cudaSuccess while it works.
[[nodiscard]] inline cudaError_t sticky_error() {
  Runtime& r = Runtime::get();
  r.scheduler.lock();
  const cudaError_t error = r.current().sticky;
  r.scheduler.unlock();
  return error;
}

/// The stream of a call that needs the stream's device to be the current one. Null, and a report, where it is not.
[[nodiscard]] Stream* stream_here(Runtime& r, cudaStream_t handle, const std::string& what);

}  // namespace fakegpu
