#pragma once
/// \file A device's Memory: all its work in the order of one stream, bytes to and from the host through pinned memory. `read_beside` has a stream of its own.

#include <memory>

#include <elrun/device.hpp>
#include <elrun/units.hpp>

#include "lib/base/clock.hpp"
#include "lib/device/memory.hpp"

namespace elrun::inline v0 {

struct DeviceMemoryOptions {
  Bytes staging{
      std::uint64_t{8}
      << 20};  ///< Pinned memory, in two halves: one is copied by the device while the host fills or empties the other. As much again for `read_beside`.
  Bytes packing{std::uint64_t{4} << 20};  ///< The device's memory through which floats are rounded and packed.
  Duration timeout =
      600s;  ///< How long `hash` and `read` wait for what the stream was given before them: the program's work too; and any copy for the one before it.
  Duration last_wait =
      2s;  ///< How long the destructor waits for work that may use the memory. After that it is kept until the process ends.
};

/// Loads every kernel on the device before anything else, so that none is loaded beside a collective that waits.
///
/// Any thread may call; each call makes the device current for itself. Errors of CUDA are thrown as Error: from `free` and `unreserve` never. A wait that
/// outlives `timeout` throws Error (`deadline_passed`). `clock` outlives it. Destroyed after all that was allocated.
[[nodiscard]] std::unique_ptr<Memory> make_device_memory(Device device, const Clock& clock, DeviceMemoryOptions options = {});

}  // namespace elrun::inline v0
