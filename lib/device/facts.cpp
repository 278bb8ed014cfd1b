#include "lib/device/facts.hpp"

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "lib/device/runtime.hpp"

namespace elrun::inline v0 {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::nullopt : std::optional<std::string>{text};
}

/// LOCAL_RANK counts the devices that this process sees. With --virtual_local_rank it is 0 in each worker, and the agent numbers its workers otherwise.
std::uint32_t local_rank_or(std::uint32_t of_session) {
  const std::string text = variable("LOCAL_RANK").value_or("");
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? number : of_session;
}

}  // namespace

DeviceFacts device_facts() { return runtime::facts(); }

std::string device_model(Device device) { return device.kind == DeviceKind::host ? std::string{} : runtime::model(device.index); }

DeviceWishes device_wishes(std::uint32_t local_rank) {
  DeviceWishes out{
      .device = variable("ELRUN_DEVICE"), .visible = variable("CUDA_VISIBLE_DEVICES"), .local_rank = local_rank_or(local_rank)};
  if (out.device && out.device->empty()) out.device.reset();
  return out;
}

}  // namespace elrun::inline v0
