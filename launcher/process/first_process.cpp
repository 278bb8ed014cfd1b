// The kernel delivers to process 1 of a namespace only signals that it has a handler for. A shell that has more to do than one command stays process 1,
// and has no handler for SIGTERM unless its script sets a trap. Init programs either handle it or block it to read it from a descriptor.
#include "launcher/process/first_process.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>

#include <fmt/format.h>

#include "lib/base/printable.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::array<std::string_view, 7> shells{"sh", "bash", "dash", "ash", "busybox", "ksh", "zsh"};

std::string_view field_of(std::string_view status, std::string_view key) {
  while (!status.empty()) {
    const std::string_view line = status.substr(0, status.find('\n'));
    status.remove_prefix(std::min(line.size() + 1, status.size()));
    if (!line.starts_with(key)) continue;
    const auto begin = line.find_first_not_of(" \t", key.size());
    return begin == std::string_view::npos ? std::string_view{} : line.substr(begin);
  }
  return {};
}

// False also when the mask cannot be read: then nothing is known.
bool lacks_sigterm(std::string_view mask) {
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(mask.data(), mask.data() + mask.size(), bits, 16);
  return error == std::errc{} && end == mask.data() + mask.size() && (bits >> (SIGTERM - 1) & 1) == 0;
}

}  // namespace

std::string first_process_warning(std::string_view status, std::int64_t own) {
  const std::string_view name = field_of(status, "Name:");
  if (own == 1 || std::find(shells.begin(), shells.end(), name) == shells.end()) return {};
  if (!lacks_sigterm(field_of(status, "SigCgt:")) || !lacks_sigterm(field_of(status, "SigBlk:"))) return {};
  return fmt::format(
      "process 1 of this container is {}, which swallows SIGTERM: when the container is stopped, elrun is not asked to leave, and is killed at the end of the "
      "grace. End the script with `exec elrun ...`, or give the container the preStop hook `elrun drain`",
      printable(std::string{name}));
}

}  // namespace elrun::inline v0::launcher
