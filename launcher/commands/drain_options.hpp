#pragma once
/// \file The words after `elrun drain`. A core: the command itself is in drain.hpp.

#include <span>
#include <string>
#include <variant>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

[[nodiscard]] std::variant<DrainOptions, Usage> parse_drain(std::span<const std::string> words);

}  // namespace elrun::inline v0::launcher
