// Entry points of libcudart.so.13: memory of devices, pinned memory.

#include "tests/fakegpu/runtime/abi.hpp"
#include "tests/fakegpu/runtime/reports.hpp"

using namespace fakegpu;

namespace {

cudaError_t allocate(Runtime& r, MemoryKind kind, void** p, std::size_t bytes) {
  if (p == nullptr) return cudaErrorInvalidValue;
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  note_context(this_thread().device);
  if (kind == MemoryKind::device ? r.faults.next_malloc() : r.faults.next_pinned()) return cudaErrorMemoryAllocation;
  const Allocation* const a = r.memory.allocate(kind, this_thread().device, bytes);
  if (a == nullptr) return cudaErrorMemoryAllocation;
  *p = a->base;
  return cudaSuccess;
}

/// The real call waits for the device, mostly. A program that counts on it breaks where memory comes from a pool, or a stream waits for
/// another process: so whoever frees has to have waited, and is reported otherwise.
cudaError_t release(Runtime& r, void* p, MemoryKind kind) {
  if (p == nullptr) return cudaSuccess;
  Allocation* const a = Memory::in_range(p) ? r.memory.near(p) : nullptr;
  if (a == nullptr || a->base != p || a->kind != kind || a->freed) {
    if (a != nullptr && a->freed) report("the host frees again " + a->name());
    return cudaErrorInvalidValue;
  }
  if (r.devices[static_cast<std::size_t>(a->device)].sticky == cudaSuccess) r.checker.check_free(*a, *r.host_clock);
  r.memory.free(*a);  // what is enqueued and touches it later finds freed memory, and is reported
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  return call([&](Runtime& r) { return allocate(r, MemoryKind::device, p, bytes); });
}

cudaError_t cudaFree(void* p) {
  return call([&](Runtime& r) { return release(r, p, MemoryKind::device); }, Lost::allow);
}

cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) {
  return call([&](Runtime& r) { return allocate(r, MemoryKind::pinned, p, bytes); });
}

cudaError_t cudaMallocHost(void** p, std::size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void* p) {
  return call([&](Runtime& r) { return release(r, p, MemoryKind::pinned); }, Lost::allow);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return call([&](Runtime& r) {
    const Allocation* const a = Memory::in_range(host) ? r.memory.find(host) : nullptr;
    if (a == nullptr || a->kind != MemoryKind::pinned) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
  *flags = cudaHostAllocMapped | cudaHostAllocPortable;
  void* device = nullptr;
  return cudaHostGetDevicePointer(&device, host, 0);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call([&](Runtime& r) {
    *total = settings().memory;
    *free = settings().memory - r.memory.used(this_thread().device);
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return call([&](Runtime& r) {
    *attributes = cudaPointerAttributes{};
    const Allocation* const a = Memory::in_range(p) ? r.memory.find(p) : nullptr;
    if (a == nullptr) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -2;  // as the real one says of memory that it does not know
      attributes->hostPointer = const_cast<void*>(p);
      return cudaSuccess;
    }
    attributes->type = a->kind == MemoryKind::pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->device = a->device;
    attributes->devicePointer = const_cast<void*>(p);
    if (a->kind == MemoryKind::pinned) attributes->hostPointer = const_cast<void*>(p);
    return cudaSuccess;
  });
}

}  // extern "C"
