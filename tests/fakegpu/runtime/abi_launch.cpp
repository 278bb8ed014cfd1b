// Entry points of libcudart.so.13: kernels. Those with two underscores are what nvcc's code calls: each object registers its kernels
// when it is loaded, and a launch names a kernel by the address of its stub.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/fakegpu/runtime/abi.hpp"
#include "tests/fakegpu/runtime/reports.hpp"
#include "tests/fakegpu/runtime/twins.hpp"
#include "tests/fakegpu/simt/interpreter.hpp"

using namespace fakegpu;

namespace {

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;  // of launches that nvcc's code has begun

bool fits(dim3 grid, dim3 block, std::size_t shared) {
  const auto no_zero = [](dim3 d) { return d.x != 0 && d.y != 0 && d.z != 0; };
  return no_zero(grid) && no_zero(block) && std::size_t{block.x} * block.y * block.z <= std::size_t{device_facts::block_threads_max} &&
         block.z <= 64 && grid.y <= 65535 && grid.z <= 65535 && shared <= std::size_t{device_facts::shared_bytes_opt_in};
}

/// The arguments are copied when the kernel is launched.
using Arguments = std::vector<std::vector<std::byte>>;

Operation operation_of(Runtime& r, const Kernel& kernel, int device, dim3 grid, dim3 block, void** args, std::size_t shared) {
  const Twin& twin = *kernel.twins.front();
  const auto kept = std::make_shared<Arguments>();
  for (std::size_t i = 0; i < twin.count; ++i) {
    const auto* bytes = static_cast<const std::byte*>(args[i]);
    kept->emplace_back(bytes, bytes + twin.sizes[i]);
  }
  Operation operation{.kind = Operation::Kind::kernel};
  operation.name = "launch " + std::to_string(++r.launches) + " of " + kernel.name;
  operation.run = [=, &r] {
    std::vector<void*> pointers;
    for (auto& argument : *kept) pointers.push_back(argument.data());
    if (!run_grid(r, {twin.body, pointers.data(), grid, block, shared}))  // it went where it must not go
      r.devices[static_cast<std::size_t>(device)].sticky = cudaErrorIllegalAddress;
  };
  return operation;
}

/// What the plan of faults does to this launch. Not cudaSuccess: it is refused.
cudaError_t apply_faults(Runtime& r, Operation& operation, int device) {
  for (const Faults::Fault& fault : r.faults.next_launch()) {
    switch (fault.kind) {
      case Faults::Kind::launch: return cudaErrorLaunchOutOfResources;
      case Faults::Kind::sticky:
        operation.run = [&r, device, fault] { r.devices[static_cast<std::size_t>(device)].sticky = static_cast<cudaError_t>(fault.value); };
        break;
      case Faults::Kind::stuck: operation.ready = [] { return false; }; break;
      case Faults::Kind::slow: operation.ready = longer_by(std::chrono::milliseconds{fault.value}); break;
      default: break;
    }
  }
  return cudaSuccess;
}

/// The real runtime loads a kernel when it is first launched, or asked about, and may wait for the device then. An operation that waits for
/// another process never ends, if that process waits for this one's launch.
void load(Runtime& r, Kernel& kernel, int device) {
  if (std::exchange(kernel.loaded, kernel.loaded | 1u << device) >> device & 1) return;
  for (const auto& stream : r.streams.all())
    for (const Operation& operation : stream->queue)
      if (stream->device == device && operation.kind == Operation::Kind::external && operation.ready != nullptr)
        return report(
            kernel.name + " is loaded while " + operation.name + " on " + stream->name() +
            " may wait for another process: a deadlock where that one waits for this. cudaFuncGetAttributes before loads it in time");
}

/// How much dynamic shared memory its blocks may have on the device.
int shared_of(const Kernel& kernel, int device) {
  const auto said = kernel.shared_bytes.find(device);
  return said == kernel.shared_bytes.end() ? device_facts::shared_bytes : said->second;
}

cudaError_t launch(const void* stub, dim3 grid, dim3 block, void** args, std::size_t shared, cudaStream_t handle) {
  return call([&](Runtime& r) -> cudaError_t {
    Kernel* const kernel = Twins::get().find(stub);
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    if (!fits(grid, block, shared)) return cudaErrorInvalidConfiguration;
    Stream* const stream = stream_here(r, handle, "a launch of " + kernel->name);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    // Of one name that is no file's own there is one definition, whichever library's copy runs.
    if (kernel->twins.empty() || (kernel->twins.size() > 1 && kernel->key.find('@') != kernel->key.npos)) {
      report((kernel->twins.empty() ? "no twin of " : "several twins of ") + kernel->key + " is in the loaded libraries");
      return cudaErrorNoKernelImageForDevice;
    }
    // What a kernel gets unasked is less than what a block can have.
    if (static_cast<int>(shared) > shared_of(*kernel, stream->device)) return cudaErrorInvalidValue;
    load(r, *kernel, stream->device);
    Operation operation = operation_of(r, *kernel, stream->device, grid, block, args, shared);
    if (const cudaError_t error = apply_faults(r, operation, stream->device); error != cudaSuccess) return error;
    return r.push(*stream, std::move(operation));
  });
}

/// Runs `body` (Kernel&) for a kernel that has a twin.
template <class Body>
cudaError_t with_kernel(const void* stub, const Body& body) {
  return call([&](Runtime& r) -> cudaError_t {
    Kernel* const kernel = Twins::get().find(stub);
    if (kernel == nullptr || kernel->twins.empty()) return cudaErrorInvalidDeviceFunction;
    load(r, *kernel, this_thread().device);
    body(*kernel);
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  Twins::get().add_kernel(stub, name);
}

void __cudaRegisterVar(void**, char*, char*, const char* name, int, std::size_t, int, int) {
  report(std::string{"variables of the device are not supported by the fake: "} + name);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  if (configurations.empty()) return finish(cudaErrorMissingConfiguration);
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, std::size_t shared, cudaStream_t stream) {
  return launch(reinterpret_cast<const void*>(kernel), grid, block, args, shared, stream);
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** args, std::size_t shared, cudaStream_t stream) {
  return launch(stub, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* stub, void** args) {
  return launch(stub, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) {
  return with_kernel(stub, [&](const Kernel& kernel) {
    *attributes = cudaFuncAttributes{};
    attributes->maxThreadsPerBlock = device_facts::block_threads_max;
    attributes->maxDynamicSharedSizeBytes = shared_of(kernel, this_thread().device);
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
  });
}

cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  const bool is_shared = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
  if (is_shared && (value < 0 || value > device_facts::shared_bytes_opt_in)) return finish(cudaErrorInvalidValue);
  return with_kernel(stub, [&](Kernel& kernel) {
    if (is_shared) kernel.shared_bytes[this_thread().device] = value;
  });
}

cudaError_t cudaFuncSetCacheConfig(const void* stub, cudaFuncCache) {
  return with_kernel(stub, [](const Kernel&) {});
}

cudaError_t cudaFuncGetName(const char** name, const void* stub) {
  return with_kernel(stub, [&](const Kernel& kernel) { *name = kernel.name.c_str(); });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub, int threads, std::size_t shared,
                                                                   unsigned) {
  if (threads < 1 || threads > device_facts::block_threads_max) return finish(cudaErrorInvalidValue);
  return with_kernel(stub, [&](const Kernel&) {
    const int by_threads = std::min(device_facts::threads_of_multiprocessor / threads, 32);
    const auto each = static_cast<int>(shared) + 1024;
    *blocks = std::min(by_threads, device_facts::shared_bytes_of_multiprocessor / each);
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* stub, int threads, std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, stub, threads, shared, 0);
}

}  // extern "C"
