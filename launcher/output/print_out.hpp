#pragma once
/// \file print_out: what a command has to say.

#include <cstdio>
#include <string_view>

namespace elrun::inline v0::launcher {

/// To standard output. fmt::print throws where that takes no more; but a reader that went away ends no command, and main() tells at the end of
/// anything else that is missing.
inline void print_out(std::string_view text) { (void)std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace elrun::inline v0::launcher
