#include <fmt/format.h>

#include "launcher/commands/install.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::string_view install_usage =
    "usage: elrun install [--force] DIR\n"
    "\n"
    "Copies this program to DIR/elrun and makes DIR/torchrun a link to it; as `torchrun` it ends with torchrun's exit\n"
    "codes. DIR is made if it is not there. Meant for an init container that shares DIR with the image that trains: use\n"
    "elrun_static for it, which needs no library of either image.\n"
    "  --force   replace a torchrun in DIR that is not a link to elrun\n"
    "\n"
    "Exit codes: 0 both are there, 64 usage, 78 DIR cannot be written or holds another torchrun.\n";

}  // namespace

std::variant<InstallOptions, Usage> parse_install(std::span<const std::string> words) {
  InstallOptions options;
  for (const std::string& word : words) {
    if (word == "-h" || word == "--help") return Usage{0, std::string{install_usage}};
    if (word == "--force") options.replaces_foreign = true;
    else if (word.starts_with('-'))
      return Usage{exit_code::usage, fmt::format("elrun: install: {}: no such option; there is --force\n", word)};
    else if (!options.directory.empty())
      return Usage{exit_code::usage, fmt::format("elrun: install: one directory, and not {} as well\n", word)};
    else options.directory = word;
  }
  if (options.directory.empty()) return Usage{exit_code::usage, "elrun: install: the directory is missing\n"};
  return options;
}

}  // namespace elrun::inline v0::launcher
