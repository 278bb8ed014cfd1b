#pragma once
/// \file The words after `elrun ckpt`. A core: the command itself is in ckpt.hpp.

#include <span>
#include <string>
#include <variant>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

[[nodiscard]] std::variant<CkptOptions, Usage> parse_ckpt(std::span<const std::string> words);

}  // namespace elrun::inline v0::launcher
