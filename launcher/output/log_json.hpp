#pragma once
/// \file A line of the launcher's own log as JSON, for collectors (`--log_format json`).

#include <atomic>
#include <cstdint>
#include <string>

#include "lib/base/log_line.hpp"

namespace elrun::inline v0::launcher {

/// What all lines of one agent have in common; what is not known yet is left out.
struct LogContext {
  std::string run, node;
  std::atomic<std::uint64_t> generation = 0;  ///< That this node runs; 0: none yet
};

/// RFC 3339 with nanoseconds: `2026-11-25T08:22:00.000000000Z`.
[[nodiscard]] std::string utc(std::int64_t wall_ns);

/// One line without newline: time (UTC), level, text, source, run, node, generation.
[[nodiscard]] std::string json_line(const LogLine& line, const LogContext& context);

}  // namespace elrun::inline v0::launcher
