#include "samples/nn/device_engine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>

#include <elrun/result.hpp>
#include <elrun/tensor.hpp>

#include "samples/nn/block.inl"
#include "samples/nn/cuda.cuh"

namespace nn {
namespace {

cudaStream_t native(elrun::Stream stream) { return static_cast<cudaStream_t>(stream.handle()); }
/// False: its work comes to no end, as that of a collective whose peers are gone, or of a device that hangs. Then the program is about to end with the
/// reason, which nobody would hear of if it waited here.
bool comes_to_an_end(cudaStream_t stream) {
  static std::atomic<bool> hangs{false};  // found before: there is nothing more to wait for
  const auto until = std::chrono::steady_clock::now() +
                     (hangs ? std::chrono::seconds{0} : std::chrono::seconds{10});  // longer than an abort of NCCL is waited for
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() >= until) return hangs = true, false;
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
  hangs = false;
  return true;
}

const KnownKernel* newest = nullptr;  // of a list; constant-initialised, so it is there before the first entry

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  const bool no_memory = error == cudaErrorMemoryAllocation;
  throw elrun::Error{{.code = no_memory ? elrun::Code::exhausted : elrun::Code::internal,
                      .remedy = elrun::Remedy::exit_process,
                      .what = std::string{call} + ": " + cudaGetErrorString(error) +
                              (no_memory ? "; smaller micro-batches or --recompute take less of the device's memory" : "")}};
}

KnownKernel::KnownKernel(const void* kernel) noexcept : kernel_{kernel}, next_{std::exchange(newest, this)} {}

unsigned resident_blocks(const void* kernel, unsigned block, std::size_t shared) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "cudaFuncSetAttribute");
  int device = 0, multiprocessors = 0, of_each = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, static_cast<int>(block), shared),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return static_cast<unsigned>(std::max(1, multiprocessors * of_each));
}
std::size_t most_shared_bytes() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<std::size_t>(bytes);
}

void KnownKernel::load_all() {
  for (const KnownKernel* each = newest; each != nullptr; each = each->next_) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, each->kernel_), "cudaFuncGetAttributes");
  }
}

template <class T>
DeviceArrayOf<T>::DeviceArrayOf(elrun::Stream stream, std::size_t count) : stream_{stream}, data_{nullptr}, size_{count} {
  if (count > 0) check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc");
}
template <class T>
DeviceArrayOf<T>::~DeviceArrayOf() {
  if (data_ != nullptr && comes_to_an_end(native(stream_))) (void)cudaFree(data_);
}
template class DeviceArrayOf<float>;
template class DeviceArrayOf<elrun::bf16>;
template class DeviceArrayOf<std::byte>;

DeviceStaging::DeviceStaging(elrun::Stream stream, std::size_t bytes) : stream_{stream}, bytes_{bytes} {
  for (Half& half : halves_) {
    if (bytes > 0) check(cudaHostAlloc(reinterpret_cast<void**>(&half.memory), bytes, cudaHostAllocDefault), "cudaHostAlloc");
    check(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(&half.is_free), cudaEventDisableTiming), "cudaEventCreate");
  }
}
DeviceStaging::~DeviceStaging() {
  if (halves_[0].is_free == nullptr || !comes_to_an_end(native(stream_))) return;
  for (const Half& half : halves_) (void)cudaEventDestroy(static_cast<cudaEvent_t>(half.is_free)), (void)cudaFreeHost(half.memory);
}
const void* DeviceStaging::fill(std::span<const std::byte> from) {
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(halves_[0].is_free)), "cudaEventSynchronize");
  std::ranges::copy(from, halves_[0].memory);
  return halves_[0].memory;
}
void DeviceStaging::copied() {
  check(cudaEventRecord(static_cast<cudaEvent_t>(halves_[0].is_free), native(stream_)), "cudaEventRecord");
  std::swap(halves_[0], halves_[1]);
}

const std::int32_t* DeviceIds::hold(std::span<const std::int32_t> ids) {
  const void* const staged = staging_.fill(std::as_bytes(ids));
  check(cudaMemcpyAsync(memory_.data(), staged, ids.size_bytes(), cudaMemcpyHostToDevice, native(stream_)), "cudaMemcpyAsync");
  staging_.copied();
  return reinterpret_cast<const std::int32_t*>(memory_.data());
}

DeviceEngine::DeviceEngine(elrun::Stream stream) : stream_{stream} {
  check(cudaSetDevice(stream.device().index), "cudaSetDevice");
  KnownKernel::load_all();
}

void DeviceEngine::fill_with_zeros(float* data, std::size_t count) {
  check(cudaMemsetAsync(data, 0, count * sizeof(float), native(stream_)), "cudaMemsetAsync");
}

void DeviceEngine::write(std::span<const float> from, float* to) {
  check(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, native(stream_)), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(native(stream_)), "cudaStreamSynchronize");  // the copy may read `from` at any time until then
}

void DeviceEngine::read(const float* from, std::span<float> to) {
  check(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, native(stream_)), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(native(stream_)), "cudaStreamSynchronize");
}

NN_BLOCK(DeviceEngine)

}  // namespace nn
