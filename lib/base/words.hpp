#pragma once
/// \file Numbers as people read them.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// "250 ms", "1.5 s".
[[nodiscard]] std::string for_people(Duration time);
/// "1 node", "2 nodes".
[[nodiscard]] std::string count_of(std::size_t count, std::string_view noun);
constexpr std::size_t names_max = 8;
/// The first `names_max` of many names: "a, b and 7 more".
[[nodiscard]] std::string some_of(const std::vector<std::string>& names);
/// For messages.
[[nodiscard]] inline double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace elrun::inline v0
