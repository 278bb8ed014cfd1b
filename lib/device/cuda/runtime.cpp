#include "lib/device/runtime.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/preload.hpp"
#include "kernels/fold.hpp"
#include "kernels/granule.hpp"
#include "kernels/state_hash.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0::runtime {
namespace {

[[nodiscard]] cudaEvent_t cuda_event(const Event& event) {
  ELRUN_ASSERT(event.device().kind == DeviceKind::cuda && event.handle() != nullptr);
  return static_cast<cudaEvent_t>(event.handle());
}

template <class T>
DeviceSpan<T> on_device(std::span<T> run) {
  return {run.data(), run.size()};
}

/// What a query says. It may repeat an error of work that was given to the device before.
Result<bool> done_or_failed(cudaError_t said, const char* call, int line) {
  if (said == cudaSuccess) return true;
  if (said != cudaErrorNotReady) return cuda_failure(said, call, __FILE__, line);
  (void)cudaGetLastError();  // or the next launch would report it
  return false;
}

}  // namespace

DeviceFacts facts() {
  DeviceFacts out{.built_with_cuda = true};
  const cudaError_t said = cudaGetDeviceCount(&out.count);
  if (said == cudaSuccess) return out;
  out.count = 0;
  out.failed = CudaFailure{.error = said,
                           .name = cudaGetErrorName(said),
                           .text = cudaGetErrorString(said),
                           .call = "cudaGetDeviceCount",
                           .needed_version = CUDART_VERSION};
  (void)cudaGetLastError();
  if (cudaDriverGetVersion(&out.failed->driver_version) != cudaSuccess) out.failed->driver_version = -1;
  (void)cudaGetLastError();
  return out;
}

std::string model(int index) {
  int major = 0, minor = 0, multiprocessors = 0;
  ELRUN_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  ELRUN_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  ELRUN_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index));
  return fmt::format("compute capability {}.{}, {} multiprocessors", major, minor, multiprocessors);
}

int current_device() {
  int index = -1;
  ELRUN_CUDA_CHECK(cudaGetDevice(&index));
  return index;
}
void set_current_device(int index) { ELRUN_CUDA_CHECK(cudaSetDevice(index)); }
void set_current_device_or_ignore(int index) noexcept {
  if (cudaSetDevice(index) != cudaSuccess) (void)cudaGetLastError();
}

std::size_t preload_kernels() { return elrun::preload_kernels(); }

void* make_stream() {
  cudaStream_t stream = nullptr;
  ELRUN_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}
void destroy_stream(void* stream) noexcept {
  if (cudaStreamDestroy(static_cast<cudaStream_t>(stream)) != cudaSuccess) (void)cudaGetLastError();
}
void* make_event() {
  cudaEvent_t event = nullptr;
  ELRUN_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}
void destroy_event(void* event) noexcept {
  if (cudaEventDestroy(static_cast<cudaEvent_t>(event)) != cudaSuccess) (void)cudaGetLastError();
}
void record(void* event, Stream stream) { ELRUN_CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event), cuda_stream(stream))); }
void wait(Stream stream, Event event) { ELRUN_CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(stream), cuda_event(event), 0)); }
Result<bool> is_done(Event event) { return done_or_failed(cudaEventQuery(cuda_event(event)), "cudaEventQuery(event)", __LINE__); }
Result<bool> is_done(Stream stream) try {
  return done_or_failed(cudaStreamQuery(cuda_stream(stream)), "cudaStreamQuery(stream)", __LINE__);
} catch (const Error& error) {  // a device that is lost may not even say which one is current
  return error.failure();
}

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  ELRUN_CUDA_CHECK(cudaMalloc(&memory, bytes));
  return memory;
}
void free(void* memory) noexcept {
  if (cudaFree(memory) != cudaSuccess) (void)cudaGetLastError();
}
void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  ELRUN_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
  return memory;
}
void free_pinned(void* memory) noexcept {
  if (cudaFreeHost(memory) != cudaSuccess) (void)cudaGetLastError();
}

void fill_async(std::span<std::byte> run, std::byte with, Stream stream) {
  if (!run.empty()) ELRUN_CUDA_CHECK(cudaMemsetAsync(run.data(), std::to_integer<int>(with), run.size(), cuda_stream(stream)));
}
void copy_async(std::span<const std::byte> from, std::span<std::byte> to, Stream stream) {
  ELRUN_ASSERT(from.size() == to.size());
  if (!from.empty()) ELRUN_CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, cuda_stream(stream)));
}
void mix_sum_async(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt, std::span<std::byte> sum, Stream stream) {
  ELRUN_ASSERT(sum.size() == sizeof(std::uint64_t));
  elrun::mix_sum_async({run.data(), run.size()}, first_word, salt, reinterpret_cast<std::uint64_t*>(sum.data()), stream);
}

void add_into_async(std::span<float> left, std::span<const float> right, Stream stream) {
  elrun::add_into_async(on_device(left), on_device(right), stream);
}
void add_into_async(std::span<float> left, std::span<const bf16> right, Stream stream) {
  elrun::add_into_async(on_device(left), on_device(right), stream);
}
void to_bf16_async(std::span<const float> in, std::span<bf16> out, Stream stream) {
  elrun::to_bf16_async(on_device(in), on_device(out), stream);
}
void to_float_async(std::span<const bf16> in, std::span<float> out, Stream stream) {
  elrun::to_float_async(on_device(in), on_device(out), stream);
}
void sums_of_squares_async(std::span<const float> data, std::span<float> sums, Stream stream) {
  elrun::sums_of_squares_async(on_device(data), on_device(sums), stream);
}
void reduce_async(const ReduceTable& table, float* result, float* sums, Stream stream) { elrun::reduce_async(table, result, sums, stream); }
void update_async(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step, Stream stream) {
  elrun::update_async(arrays, table, step, stream);
}

}  // namespace elrun::inline v0::runtime
