// Debian has no libfmt.a: everything of fmt that other files call is compiled once, here, for what carries its fmt (libelrun, elrun_static).
#define FMT_HEADER_ONLY
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace elrun {
[[gnu::used]] void print(std::FILE* to, fmt::string_view text, fmt::format_args arguments) { fmt::vprint(to, text, arguments); }
[[gnu::used]] void print(fmt::string_view text, fmt::format_args arguments) { fmt::vprint(text, arguments); }
[[gnu::used]] std::string format(fmt::string_view text, fmt::format_args arguments) { return fmt::vformat(text, arguments); }
[[gnu::used]] std::string format(const std::tm& time) { return fmt::format("{:%Y}", time); }
}  // namespace elrun
