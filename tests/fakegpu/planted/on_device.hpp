#pragma once
/// \file Streams, events and arrays on a fake device, for tests that make mistakes with them on purpose.

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <vector>

#include <elrun/device.hpp>
#include <elrun/device_span.hpp>
#include "kernels/cuda/check.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"

namespace elrun::planted {

/// The reports since the last call, in one text.
inline std::string reports() {
  std::string text;
  for (const std::string& report : fakegpu::take_reports()) text += report + '\n';
  return text;
}

/// As ELRUN_CUDA_CHECK, as an expression.
inline void must(cudaError_t error) { ELRUN_CUDA_CHECK(error); }

inline Stream view(cudaStream_t stream, int device = 0) { return {{DeviceKind::cuda, device}, stream}; }

inline cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

inline cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  must(cudaEventCreateWithFlags(&event, flags));
  return event;
}

inline DeviceSpan<float> empty_array(std::uint64_t count) {
  void* p = nullptr;
  must(cudaMalloc(&p, count * sizeof(float)));
  return {static_cast<float*>(p), count};
}

/// Filled, and the host has waited for it.
inline DeviceSpan<float> new_array(std::uint64_t count, float value = 1.0f) {
  const DeviceSpan<float> array = empty_array(count);
  const std::vector<float> from(count, value);
  must(cudaMemcpy(array.data, from.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  return array;
}

inline float* new_pinned(std::uint64_t count) {
  void* p = nullptr;
  must(cudaMallocHost(&p, count * sizeof(float)));
  return static_cast<float*>(p);
}

}  // namespace elrun::planted
