#include "lib/device/facts.hpp"

#include <cstdlib>

#include "lib/device/runtime.hpp"

namespace elrun::inline v0 {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::nullopt : std::optional<std::string>{text};
}

}  // namespace

DeviceFacts device_facts() { return runtime::facts(); }

DeviceWishes device_wishes(std::uint32_t local_rank) {
  DeviceWishes out{.device = variable("ELRUN_DEVICE"), .visible = variable("CUDA_VISIBLE_DEVICES"), .local_rank = local_rank};
  if (out.device && out.device->empty()) out.device.reset();
  return out;
}

}  // namespace elrun::inline v0
