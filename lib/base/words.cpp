#include "lib/base/words.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace elrun::inline v0 {

std::string for_people(Duration time) {
  const double ms = std::chrono::duration<double, std::milli>(time).count();
  return ms < 1000 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.1f} s", ms / 1000);
}

std::string count_of(std::size_t count, std::string_view noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

std::string some_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), names_max);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace elrun::inline v0
