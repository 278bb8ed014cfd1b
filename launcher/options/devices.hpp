#pragma once
/// \file Devices: how many GPUs and CPUs there are for the workers of this node, and how that is known.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

/// Devices of NVIDIA that this machine has files for.
struct DeviceFiles {
  std::uint32_t nodes = 0;   ///< /dev/nvidia0, 1, ...
  std::uint32_t driver = 0;  ///< /proc/driver/nvidia/gpus/...
};

/// CUDA_VISIBLE_DEVICES, else the list of NVIDIA_VISIBLE_DEVICES (a privileged container has files for devices that are
/// another's), else the files.
[[nodiscard]] Count count_gpus(const Variables& environment, const std::function<DeviceFiles()>& files);

/// CPUs' worth of time that this process's control group may use, the least of it and those above it; none: no limit.
[[nodiscard]] std::optional<double> cpu_quota(const ReadFile& read_file);

/// Whole CPUs of the affinity mask, or of the quota when that is less; at least 1.
[[nodiscard]] Count count_cpus(std::uint32_t in_mask, std::optional<double> quota);

}  // namespace elrun::inline v0::launcher
