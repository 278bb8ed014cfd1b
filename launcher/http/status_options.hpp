#pragma once
/// \file The words after `elrun status`. A core: the command itself is in status_command.hpp.

#include <span>
#include <string>
#include <variant>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

[[nodiscard]] std::variant<StatusOptions, Usage> parse_status(std::span<const std::string> words);

}  // namespace elrun::inline v0::launcher
