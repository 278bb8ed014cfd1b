#include "tests/fakegpu/nccl/settings.hpp"

#include <cstdio>
#include <cstdlib>

namespace fakenccl {
namespace {

long number(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 0);
  if (*end == '\0') return value;
  std::fprintf(stderr, "fakegpu: %s=%s is not a number\n", name, text);
  std::_Exit(78);
}

std::string folder() {
  for (const char* name : {"FAKEGPU_NCCL_DIR", "TMPDIR"})
    if (const char* text = std::getenv(name); text != nullptr && *text != '\0') return text;
  return "/tmp";
}

Settings from_environment() {
  return {.version = static_cast<int>(number("FAKEGPU_NCCL_VERSION", FAKEGPU_NCCL_NEWEST)),
          .folder = folder(),
          .slot = static_cast<std::uint64_t>(number("FAKEGPU_NCCL_SLOT_MIB", 1024)) << 20,
          .buffer = static_cast<std::uint64_t>(number("FAKEGPU_NCCL_BUFFER", 16 << 10)),
          .abort_ms = number("FAKEGPU_NCCL_ABORT_MS", 0),
          .kill_at = static_cast<std::uint64_t>(number("FAKEGPU_NCCL_KILL_AT", 0)),
          .fail_at = static_cast<std::uint64_t>(number("FAKEGPU_NCCL_FAIL_AT", 0)),
          .failure = static_cast<int>(number("FAKEGPU_NCCL_FAILURE", 2))};
}

}  // namespace

const Settings& settings() {
  static const Settings* const all = new Settings{from_environment()};  // never destroyed: used until the process ends
  return *all;
}

}  // namespace fakenccl
