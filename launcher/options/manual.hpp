#pragma once
/// \file The manual page elrun(1), from the table of options and the help of each command: it cannot grow older than they are.

#include <span>
#include <string>
#include <string_view>

namespace elrun::inline v0::launcher {

/// One of `elrun store`, `elrun drain` and so on, with what it prints for --help.
struct CommandHelp {
  std::string_view name;
  std::string text;
};

[[nodiscard]] std::string manual_page(std::string_view version, std::span<const CommandHelp> commands);

}  // namespace elrun::inline v0::launcher
