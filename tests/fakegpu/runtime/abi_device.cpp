// Entry points of libcudart.so.13: devices, versions, errors.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "tests/fakegpu/runtime/abi.hpp"
#include "tests/fakegpu/runtime/runtime.hpp"
#include "tests/fakegpu/runtime/twins.hpp"

using namespace fakegpu;

namespace {

constexpr int driver_version = 13000, old_driver_version = 12020;

bool is_device(int device) { return device >= 0 && device < settings().devices; }

/// What programs ask about most, as an H100 answers.
constexpr struct {
  cudaDeviceAttr attribute;
  int value;
} attributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, device_facts::block_threads_max},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, device_facts::shared_bytes},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, device_facts::shared_bytes_opt_in},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, device_facts::shared_bytes_of_multiprocessor},
    {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrMaxThreadsPerMultiProcessor, device_facts::threads_of_multiprocessor},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrIpcEventSupport, 1},
    {cudaDevAttrComputePreemptionSupported, 1},
};

std::string bus_id(int device) {
  char text[32];
  std::snprintf(text, sizeof text, "0000:%02X:00.0", settings().physical[device] + 1);
  return text;
}

const char* error_text(cudaError_t error, bool name) {
  switch (static_cast<int>(error)) {
#define FAKEGPU_ERROR(code, text) \
  case code:                      \
    return name ? #code : text;
#include "tests/fakegpu/runtime/errors.inc"
#undef FAKEGPU_ERROR
  }
  return "unrecognized error code";
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  if (const int why = Runtime::get().faults.count_error(); why != 0) return finish(static_cast<cudaError_t>(why));
  *count = settings().devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  if (!is_device(device)) return finish(cudaErrorInvalidDevice);
  this_thread().device = device;
  note_context(device);  // since CUDA 12
  return finish(settings().lost_is_quiet ? cudaSuccess : sticky_error());
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return call([&](Runtime&) { return is_device(device) ? cudaSuccess : cudaErrorInvalidDevice; });
}

cudaError_t cudaGetDevice(int* device) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  *device = this_thread().device;
  return finish(settings().lost_is_quiet ? cudaSuccess : sticky_error());
}

cudaError_t cudaSetDeviceFlags(unsigned) { return finish(refused()); }

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  *flags = 0;
  return finish(refused());
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  if (!is_device(device)) return finish(cudaErrorInvalidDevice);
  if (attribute == cudaDevAttrPciBusId) return *value = settings().physical[device] + 1, cudaSuccess;
  if (attribute == cudaDevAttrMultiProcessorCount) return *value = settings().multiprocessors, cudaSuccess;
  const auto* known = std::ranges::find_if(attributes, [&](const auto& a) { return a.attribute == attribute; });
  *value = known == std::end(attributes) ? 0 : known->value;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  if (!is_device(device)) return finish(cudaErrorInvalidDevice);
  *p = cudaDeviceProp{};
  std::snprintf(p->name, sizeof p->name, "fake device");
  std::memcpy(p->uuid.bytes, "elrun-fakegpu--", 15);
  p->uuid.bytes[15] = static_cast<char>(settings().physical[device]);
  p->totalGlobalMem = settings().memory;
  p->sharedMemPerBlock = device_facts::shared_bytes;
  p->sharedMemPerBlockOptin = device_facts::shared_bytes_opt_in;
  p->sharedMemPerMultiprocessor = device_facts::shared_bytes_of_multiprocessor;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = device_facts::block_threads_max;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = 9;
  p->multiProcessorCount = settings().multiprocessors;
  p->maxThreadsPerMultiProcessor = device_facts::threads_of_multiprocessor;
  p->maxBlocksPerMultiProcessor = 32;
  p->l2CacheSize = 50 << 20;
  p->pciBusID = settings().physical[device] + 1;
  p->unifiedAddressing = p->concurrentKernels = p->canMapHostMemory = p->hostRegisterSupported = p->ipcEventSupported = 1;
  p->asyncEngineCount = 3;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  if (!is_device(device)) return finish(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(length), "%s", bus_id(device).c_str());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  for (int d = 0; d < settings().devices; ++d)
    if (bus_id(d) == text) return *device = d, cudaSuccess;
  return finish(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return finish(refused());
}

cudaError_t cudaDeviceSetLimit(cudaLimit, std::size_t) { return finish(refused()); }

cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit) {
  *value = 1024;
  return finish(refused());
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  if (!is_device(device) || !is_device(peer)) return finish(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return call([&](Runtime& r) {
    if (!is_device(peer) || peer == this_thread().device) return cudaErrorInvalidDevice;
    if ((r.current().peers >> peer & 1) != 0) return cudaErrorPeerAccessAlreadyEnabled;
    r.current().peers |= 1u << peer;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return call([&](Runtime& r) {
    if (!is_device(peer) || (r.current().peers >> peer & 1) == 0) return cudaErrorPeerAccessNotEnabled;
    r.current().peers &= ~(1u << peer);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call([](Runtime& r) {
    const int device = this_thread().device;
    std::map<std::uint64_t, std::uint64_t> until;  // by number: another thread may destroy a stream meanwhile
    for (const auto& s : r.streams.all())
      if (s->device == device) until[s->number] = s->pushed;
    const auto behind = [&](const Stream& s) { return s.device == device && until.contains(s.number) && s.done < until[s.number]; };
    r.scheduler.wait([&] { return std::ranges::none_of(r.streams.all(), [&](const auto& s) { return behind(*s); }); });
    for (const auto& s : r.streams.all())
      if (s->device == device) r.host_knows(s->clock);
    return r.current().sticky;
  });
}

cudaError_t cudaDeviceReset() {
  return call(
      [](Runtime& r) {
        const int device = this_thread().device;
        r.scheduler.wait([&] { return !r.scheduler.is_running(); });  // a function of the host runs without the lock
        r.streams.drop_all_of(device);
        r.memory.free_all_of(device);
        Twins::get().unload(device);
        r.current() = DeviceState{};
        this_thread().last = cudaSuccess;
        return cudaSuccess;
      },
      Lost::allow);
}

cudaError_t cudaDriverGetVersion(int* version) {
  const Faults::Driver driver = Runtime::get().faults.driver();
  *version = driver == Faults::Driver::missing ? 0 : driver == Faults::Driver::old ? old_driver_version : driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// A lost device's error is not taken back by being read.
cudaError_t cudaGetLastError() {
  if (const cudaError_t why = refused(); why == cudaErrorInsufficientDriver || why == cudaErrorNoDevice) return why;
  const cudaError_t last = std::exchange(this_thread().last, cudaSuccess);
  const cudaError_t sticky = sticky_error();
  return sticky != cudaSuccess ? sticky : last;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t sticky = sticky_error();
  return sticky != cudaSuccess ? sticky : this_thread().last;
}

const char* cudaGetErrorName(cudaError_t error) { return error_text(error, true); }
const char* cudaGetErrorString(cudaError_t error) { return error_text(error, false); }

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
