#include "lib/job/declare/device_class.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

constexpr std::string_view entry = "elrun.device";
constexpr std::string_view host = "cpu";

std::string_view kind_of(Device device) { return device.kind == DeviceKind::host ? host : "cuda"; }

/// "cpu", "cuda", or "cuda, compute capability 9.0, 132 multiprocessors".
std::string class_of(Device device, std::string_view model) {
  return model.empty() ? std::string{kind_of(device)} : fmt::format("{}, {}", kind_of(device), model);
}

/// Of "kind, model" the kind.
std::string_view kind_in(std::string_view device_class) { return device_class.substr(0, device_class.find(',')); }

}  // namespace

Agreement device_agreement(Device device, std::string_view model) {
  return {
      "kind of device", fmt::format("device: {}\n", class_of(device, model)),
      "where the worker on the CPU runs, look at the NVIDIA driver and at CUDA_VISIBLE_DEVICES: with ELRUN_DEVICE=cuda it says what is wrong there; ELRUN_DEVICE has to be the same "
      "for all workers, and cpu puts all of them on the CPU. GPUs have to be of one model, unless the program says that its kernels give the same bits on all "
      "(RunOptions::any_device_model)"};
}

void append_device(std::vector<Aux>& aux, Device device, std::string_view model) {
  const std::string text = class_of(device, model);
  const auto bytes = std::as_bytes(std::span{text});
  aux.push_back({std::string{entry}, {bytes.begin(), bytes.end()}});
}

std::optional<std::string> device_doubt(const std::vector<Aux>& aux, Device now, std::string_view model) {
  const auto at = std::ranges::find(aux, entry, &Aux::name);
  const std::string_view then =
      at == aux.end() ? host : std::string_view{reinterpret_cast<const char*>(at->bytes.data()), at->bytes.size()};
  const bool same_kind = kind_in(then) == kind_of(now), says_model = kind_in(then) != then && !model.empty();
  if (same_kind && (!says_model || then == class_of(now, model))) return std::nullopt;
  return fmt::format(
      "the checkpoint's last steps were computed on {}; the job now runs on {}. elrun's own arithmetic has the same bits on both. The program's may not: then the run is no "
      "longer bit-identical to one that stays on {}",
      then, class_of(now, model), then);
}

}  // namespace elrun::inline v0
