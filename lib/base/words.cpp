#include "lib/base/words.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {

std::string for_people(Duration time) {
  const double ms = std::chrono::duration<double, std::milli>(time).count();
  return ms < 1000 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.1f} s", ms / 1000);
}

std::string count_of(std::size_t count, std::string_view noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

}  // namespace elrun::inline v0
