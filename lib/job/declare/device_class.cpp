#include "lib/job/declare/device_class.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

constexpr std::string_view entry = "elrun.device";
constexpr std::string_view host = "cpu";

std::string_view kind_of(Device device) { return device.kind == DeviceKind::host ? host : "cuda"; }

}  // namespace

Agreement device_agreement(Device device) {
  return {
      "kind of device", fmt::format("device: {}\n", kind_of(device)),
      "where the worker on the CPU runs, look at the NVIDIA driver and at CUDA_VISIBLE_DEVICES: with ELRUN_DEVICE=cuda it says what is wrong there; ELRUN_DEVICE has to be the same "
      "for all workers, and cpu puts all of them on the CPU"};
}

void append_device(std::vector<Aux>& aux, Device device) {
  const auto bytes = std::as_bytes(std::span{kind_of(device)});
  aux.push_back({std::string{entry}, {bytes.begin(), bytes.end()}});
}

std::optional<std::string> device_doubt(const std::vector<Aux>& aux, Device now) {
  const auto at = std::ranges::find(aux, entry, &Aux::name);
  const std::string_view then =
      at == aux.end() ? host : std::string_view{reinterpret_cast<const char*>(at->bytes.data()), at->bytes.size()};
  if (then == kind_of(now)) return std::nullopt;
  return fmt::format(
      "the checkpoint's last steps were computed on {}; the job now runs on {}. elrun's own arithmetic has the same bits on both. The program's may not: then the run is no "
      "longer bit-identical to one that stays on {}",
      then, kind_of(now), then);
}

}  // namespace elrun::inline v0
