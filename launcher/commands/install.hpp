#pragma once
/// \file `elrun install DIR`: elrun copies itself, for an init container that hands it to another image.

#include <span>
#include <string>
#include <variant>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

/// The words after `install`.
[[nodiscard]] std::variant<InstallOptions, Usage> parse_install(std::span<const std::string> words);

/// DIR/elrun, and DIR/torchrun, a link to it; each is there as a whole or as it was before. Returns the exit code.
[[nodiscard]] int run_install(const InstallOptions& options);

}  // namespace elrun::inline v0::launcher
