#pragma once
/// \file Asks the CUDA runtime which devices this process sees, and the environment which it should use.

#include <cstdint>
#include <string>

#include "lib/device/choose.hpp"

namespace elrun::inline v0 {

/// Makes no context on any device, so it costs no memory there. The driver is loaded by the first call in a process (some 0.1 s).
[[nodiscard]] DeviceFacts device_facts();

/// What the bits of a program's kernels may depend on: "compute capability 9.0, 132 multiprocessors". A part of a GPU (MIG) has fewer of them than all of it. Empty for the host.
/// Throws Error. Makes no context, either.
[[nodiscard]] std::string device_model(Device device);

/// ELRUN_DEVICE, CUDA_VISIBLE_DEVICES and LOCAL_RANK of this process. An empty ELRUN_DEVICE is as none. `local_rank`: the session's, for a process without LOCAL_RANK.
[[nodiscard]] DeviceWishes device_wishes(std::uint32_t local_rank);

}  // namespace elrun::inline v0
