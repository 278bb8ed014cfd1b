#pragma once
/// \file What a test asks of the fake devices. Programs that include this run on the fake alone.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fakegpu {

/// Reports so far, repeated ones too.
[[nodiscard]] std::size_t report_count();
/// The reports since the last call. They no longer make the process fail.
[[nodiscard]] std::vector<std::string> take_reports();

/// What the process holds now. A test that rebuilds something a thousand times compares two of these.
struct Holdings {
  std::size_t allocations = 0, pinned = 0, imported = 0, streams = 0, events = 0;
  std::size_t device_bytes = 0;
  friend bool operator==(const Holdings&, const Holdings&) = default;
};
[[nodiscard]] Holdings holdings();

/// Launches of kernels so far, and operations of any kind.
[[nodiscard]] std::uint64_t launch_count();

/// As FAKEGPU_SEED would, from here on.
void set_seed(std::uint64_t seed);
/// As FAKEGPU_FAULTS would, counted from here on. Empty: no faults. A sticky error that stands is not taken back.
void set_faults(const std::string& faults);

/// Copies from memory of the host that is not pinned read it when they run, which CUDA allows, and no longer before the call returns.
void set_pageable_late(bool late);

/// Puts work on a stream (a cudaStream_t of the current device) that lasts until `over` holds: a kernel that takes long. `over` is asked often, on any thread.
void hold_stream(void* stream, std::function<bool()> over);

}  // namespace fakegpu
