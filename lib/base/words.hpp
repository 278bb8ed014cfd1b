#pragma once
/// \file Numbers as people read them.

#include <cstddef>
#include <string>
#include <string_view>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// "250 ms", "1.5 s".
[[nodiscard]] std::string for_people(Duration time);
/// "1 node", "2 nodes".
[[nodiscard]] std::string count_of(std::size_t count, std::string_view noun);

}  // namespace elrun::inline v0
