#include "lib/device/choose.hpp"

#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr int no_device = 100, insufficient_driver = 35, initialization_error = 3, unknown = 999;  // as cudaError_t

/// The machine has no device for this process. A driver that is too old, or not ready, means that it has one.
bool has_none(const DeviceFacts& facts) {
  if (!facts.built_with_cuda) return true;
  if (!facts.failed) return facts.count == 0;
  return facts.failed->error == no_device || (facts.failed->error == insufficient_driver && facts.failed->driver_version == 0);
}

/// From the first call of CUDA in a process these do not say that it has lost a device: nothing has begun, and another process would be told the same.
std::optional<Failure> does_not_start(const CudaFailure& failed) {
  if (failed.error != initialization_error && failed.error != unknown) return std::nullopt;
  return Failure{
      Code::refused, Remedy::fix_config,
      fmt::format(
          "{} gave {} ({}): CUDA does not start here. Look whether the kernel's module nvidia_uvm is loaded (`nvidia-modprobe -u -c 0`; after a suspend it has to be loaded "
          "anew), whether the container was given /dev/nvidia-uvm, and at `dmesg`; a process made by fork of one that used CUDA cannot use it",
          failed.call, failed.name, failed.text)};
}

/// What is said of the devices that are visible: "2 devices are visible (CUDA_VISIBLE_DEVICES=0,1)".
std::string visible_ones(const DeviceWishes& wishes, int count) {
  return fmt::format("{} {} visible ({})", count, count == 1 ? "device is" : "devices are",
                     wishes.visible ? fmt::format("CUDA_VISIBLE_DEVICES={:.80}", *wishes.visible) : "CUDA_VISIBLE_DEVICES is not set");
}

std::string why_none(const DeviceWishes& wishes, const DeviceFacts& facts) {
  if (!facts.built_with_cuda) return "this libelrun was built without CUDA";
  if (facts.failed) return failure_of(*facts.failed).what;
  return visible_ones(wishes, 0);
}

/// N of "cuda:N".
std::optional<int> parse_index(std::string_view text) {
  int index = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc{} || end != text.data() + text.size() || index < 0) return std::nullopt;
  return index;
}

}  // namespace

Result<Device> choose_device(const DeviceWishes& wishes, const DeviceFacts& facts) {
  static constexpr std::string_view numbered = "cuda:";
  const std::string wanted = wishes.device.value_or("");
  if (wanted == "cpu") return Device{};
  std::optional<int> index;
  if (wanted.starts_with(numbered)) index = parse_index(std::string_view{wanted}.substr(numbered.size()));
  if (!wanted.empty() && wanted != "cuda" && !index)
    return invalid(fmt::format("ELRUN_DEVICE={:.40} in the environment of this worker: cpu, cuda and cuda:N are possible", wanted));
  if (has_none(facts)) {
    if (wanted.empty()) return Device{};
    return Failure{Code::not_found, Remedy::fix_config,
                   fmt::format("ELRUN_DEVICE={} asks for a CUDA device: {}", wanted, why_none(wishes, facts))};
  }
  if (facts.failed) {
    Failure why = does_not_start(*facts.failed).value_or(failure_of(*facts.failed));
    why.what = fmt::format("the CUDA devices of this machine cannot be used; ELRUN_DEVICE=cpu does without them. {}", why.what);
    return why;
  }
  const int device = index.value_or(static_cast<int>(wishes.local_rank));
  if (device < facts.count) return Device{DeviceKind::cuda, device};
  if (index)
    return Failure{Code::not_found, Remedy::fix_config,
                   fmt::format("ELRUN_DEVICE={} asks for a device that is not visible: {}", wanted, visible_ones(wishes, facts.count))};
  return Failure{
      Code::not_found, Remedy::fix_config,
      fmt::format("the worker with LOCAL_RANK {} has no device of its own: {}. Start as many workers on this node as it has devices, "
                  "name more of them in CUDA_VISIBLE_DEVICES, let workers share one with ELRUN_DEVICE=cuda:N, or set "
                  "ELRUN_DEVICE=cpu",
                  wishes.local_rank, visible_ones(wishes, facts.count))};
}

std::optional<std::string> why_on_host(const DeviceWishes& wishes, const DeviceFacts& facts) {
  if (!wishes.device.value_or("").empty() || !has_none(facts)) return std::nullopt;
  return why_none(wishes, facts);
}

}  // namespace elrun::inline v0
