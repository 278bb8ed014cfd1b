#pragma once
/// \file What the fake devices found wrong. A report goes to stderr (the first few), to the file of FAKEGPU_REPORTS, and is kept for
/// inspect.hpp. A process with reports that nobody took ends with FAKEGPU_REPORT_EXIT.

#include <cstddef>
#include <string>
#include <vector>

namespace fakegpu {

/// From any thread, with or without the runtime's lock.
void report(const std::string& what);
/// The same text again is counted, not told.
[[nodiscard]] std::size_t report_count();
/// The reports since the last call. They no longer make the process fail.
[[nodiscard]] std::vector<std::string> take_reports();

}  // namespace fakegpu
