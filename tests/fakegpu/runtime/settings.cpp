#include "tests/fakegpu/runtime/settings.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fakegpu {
namespace {

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

[[noreturn]] void refuse(const char* name, const char* text, const char* wanted) {
  std::fprintf(stderr, "fakegpu: %s=%s is not %s\n", name, text, wanted);
  std::_Exit(78);
}

std::uint64_t number(const char* name, std::uint64_t otherwise, std::uint64_t most) {
  const char* text = variable(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text, &end, 0);
  if (*end != '\0' || value > most) refuse(name, text, "a number in range");
  return value;
}

// As the driver reads it: a list of numbers. It ends before the first that is no device, or comes again.
void see_devices(Settings& s) {
  const int all = static_cast<int>(number("FAKEGPU_DEVICES", 1, devices_max));
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  s.devices = 0;
  if (list == nullptr) {
    for (; s.devices < all; ++s.devices) s.physical[s.devices] = s.devices;
    return;
  }
  while (*list != '\0' && s.devices < all) {
    char* end = nullptr;
    const long device = std::strtol(list, &end, 10);
    const bool again = std::find(s.physical, s.physical + s.devices, device) != s.physical + s.devices;
    if (end == list || device < 0 || device >= all || again) return;
    s.physical[s.devices++] = static_cast<int>(device);
    list = *end == ',' ? end + 1 : "";
  }
}

Settings from_environment() {
  Settings s;
  s.seed = number("FAKEGPU_SEED", s.seed, UINT64_MAX);
  see_devices(s);
  s.memory = number("FAKEGPU_MEMORY_MIB", s.memory >> 20, 1u << 19) << 20;
  s.multiprocessors = static_cast<int>(std::max<std::uint64_t>(number("FAKEGPU_MULTIPROCESSORS", 132, 1024), 1));
  s.contexts = static_cast<int>(number("FAKEGPU_CONTEXTS", devices_max, devices_max));
  s.lost_is_quiet = number("FAKEGPU_LOST_IS_QUIET", 0, 1) != 0;
  s.check = number("FAKEGPU_CHECK", 1, 1) != 0;
  s.report_exit = static_cast<int>(number("FAKEGPU_REPORT_EXIT", 86, 255));
  if (const char* text = variable("FAKEGPU_REPORTS")) s.report_file = text;
  if (const char* text = variable("FAKEGPU_FAULTS")) s.faults = text;
  if (const char* text = variable("FAKEGPU_PROGRESS")) {
    if (std::strcmp(text, "seeded") == 0) s.progress = Progress::seeded;
    else if (std::strcmp(text, "lazy") == 0) s.progress = Progress::lazy;
    else if (std::strcmp(text, "eager") == 0) s.progress = Progress::eager;
    else refuse("FAKEGPU_PROGRESS", text, "seeded, lazy or eager");
  }
  return s;
}

}  // namespace

const Settings& settings() {
  static const Settings* const all = new Settings{from_environment()};  // never destroyed: used until the process ends
  return *all;
}

}  // namespace fakegpu
