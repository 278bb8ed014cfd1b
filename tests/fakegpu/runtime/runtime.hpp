#pragma once
/// \file The fake devices of this process: all parts, and the frame that every entry point of the C interface runs in.

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <string>

#include "tests/fakegpu/runtime/checker.hpp"
#include "tests/fakegpu/runtime/faults.hpp"
#include "tests/fakegpu/runtime/history.hpp"
#include "tests/fakegpu/runtime/ipc.hpp"
#include "tests/fakegpu/runtime/memory.hpp"
#include "tests/fakegpu/runtime/scheduler.hpp"
#include "tests/fakegpu/runtime/streams.hpp"

namespace fakegpu {

struct DeviceState {
  cudaError_t sticky = cudaSuccess;  ///< The device is lost to this process: every call gives this.
  std::uint32_t peers = 0;           ///< A bit for each device whose memory kernels here may use, itself not counted.
};

/// What belongs to a thread of the host.
struct ThreadState {
  int device = 0;
  cudaError_t last = cudaSuccess;
  bool in_host_function = false;  ///< There the runtime must not be called.
};
[[nodiscard]] ThreadState& this_thread();

class Runtime {
 public:
  [[nodiscard]] static Runtime& get();

  Memory memory;
  History history;
  Streams streams;
  Ipc ipc;
  Checker checker{memory, history};
  Faults faults;
  Scheduler scheduler;
  std::array<DeviceState, devices_max> devices;
  std::shared_ptr<const Clock> host_clock = std::make_shared<const Clock>();  ///< What the host has waited for.
  std::uint64_t launches = 0;

  /// The host has seen that what `clock` says has ended.
  void host_knows(const Clock& clock);
  /// Waits until all that is on `stream` now has run.
  cudaError_t synchronize(Stream& stream);
  /// Enqueues. Gives the error of a device that is lost.
  cudaError_t push(Stream& stream, Operation operation);
  /// The bits of the devices whose memory an operation of `device` may use.
  [[nodiscard]] std::uint32_t reachable_from(int device) const { return devices[static_cast<std::size_t>(device)].peers | 1u << device; }
  [[nodiscard]] DeviceState& current() { return devices[static_cast<std::size_t>(this_thread().device)]; }

 private:
  Runtime();
};

/// Why no call can succeed here at all: no driver, a forked child, a host function. cudaSuccess otherwise.
[[nodiscard]] cudaError_t refused();
/// This process has a context on `device` from now on, which takes memory there and stays.
void note_context(int device);
/// Keeps the error for cudaGetLastError.
cudaError_t finish(cudaError_t error);

enum class Lost : bool { refuse, allow };  ///< Whether a device with a sticky error answers this call.

/// Runs `body` (Runtime&) -> cudaError_t under the lock.
template <class Body>
cudaError_t call(const Body& body, Lost lost = Lost::refuse) {
  if (const cudaError_t why = refused(); why != cudaSuccess) return finish(why);
  Runtime& runtime = Runtime::get();
  runtime.scheduler.lock();
  cudaError_t result = lost == Lost::refuse ? runtime.current().sticky : cudaSuccess;
  if (result == cudaSuccess) result = body(runtime);
  runtime.scheduler.unlock();
  return finish(result);
}

}  // namespace fakegpu
