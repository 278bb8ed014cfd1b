#pragma once
/// \file Memory and events of one process in another. A handle names a memory file of the process that made it, by /proc: nothing is left
/// behind when a process is killed, and a handle of a process that has ended opens nothing.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tests/fakegpu/runtime/memory.hpp"

namespace fakegpu {

/// What two processes see of one event: how often it was recorded, and how many of these recordings have happened.
struct SharedEvent {
  std::atomic<std::uint64_t> recorded{0}, done{0};
};
using SharedEventPtr = std::shared_ptr<SharedEvent>;

class Ipc {
 public:
  /// The handle of the allocation around `a`.
  [[nodiscard]] cudaIpcMemHandle_t handle_of(Memory& memory, const Allocation& a) const;
  /// Null where the process of the handle has ended, or is this one.
  Allocation* open(Memory& memory, const cudaIpcMemHandle_t& handle);
  /// False for what is no memory of another process. The last close of several unmaps it.
  bool close(Memory& memory, const void* p);

  /// An event that other processes can open.
  [[nodiscard]] static SharedEventPtr make_event(int& file);
  [[nodiscard]] static cudaIpcEventHandle_t handle_of_event(int file);
  [[nodiscard]] static SharedEventPtr open_event(const cudaIpcEventHandle_t& handle);

 private:
  struct Opened {
    Allocation* allocation;
    int times;
  };
  std::map<std::string, Opened> opened_;  ///< By the handle's bytes.
};

}  // namespace fakegpu
