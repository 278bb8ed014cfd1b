#pragma once
/// \file Which device a worker computes on: from its environment and from what the machine has. Pure; facts.hpp asks the machine.

#include <cstdint>
#include <optional>
#include <string>

#include <elrun/device.hpp>
#include <elrun/result.hpp>

#include "kernels/cuda/errors.hpp"

namespace elrun::inline v0 {

/// What a worker's environment says.
struct DeviceWishes {
  std::optional<std::string> device{};   ///< ELRUN_DEVICE: "cpu", "cuda", or "cuda:N" for one that workers may share.
  std::optional<std::string> visible{};  ///< CUDA_VISIBLE_DEVICES.
  std::uint32_t local_rank = 0;          ///< LOCAL_RANK.
};

/// What the machine has.
struct DeviceFacts {
  bool built_with_cuda = false;
  int count = 0;                        ///< Visible devices.
  std::optional<CudaFailure> failed{};  ///< Why they could not be counted.
};

/// `ELRUN_DEVICE=cpu`: the host. `cuda`: the LOCAL_RANK-th of the visible devices. Not set: as `cuda` where a device is visible, and the host where
/// there is no driver or no visible device. Nothing falls back in silence: what was asked for and cannot be had, and a device that is there but
/// cannot be used, is a failure with the remedy `fix_config` or `exit_process`.
[[nodiscard]] Result<Device> choose_device(const DeviceWishes& wishes, const DeviceFacts& facts);

/// Where that is the host, and ELRUN_DEVICE is not set: why, in words for a person.
[[nodiscard]] std::optional<std::string> why_on_host(const DeviceWishes& wishes, const DeviceFacts& facts);

}  // namespace elrun::inline v0
