#pragma once
/// \file What a line of the log says, as a value. Cores decide it; a Log (log.hpp) puts it somewhere.

#include <cstdint>
#include <string_view>

namespace elrun::inline v0 {

enum class Level { debug, info, warning, error };

/// One fact. Views are borrowed.
struct LogLine {
  std::int64_t wall_ns = 0;
  Level level = Level::info;
  std::string_view who, text;
};

}  // namespace elrun::inline v0
