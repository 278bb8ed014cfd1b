#pragma once
/// \file Admin options: what an agent offers beside its job, from flags and torch's variables.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <elrun/result.hpp>

namespace elrun::inline v0::launcher {

/// Where health, status and metrics are served.
struct HealthPort {
  std::string host;        ///< A literal address; empty: all of this machine's
  std::uint16_t port = 0;  ///< 0: any free one, which the log names
  bool is_needed = true;   ///< Asked for by a flag: if it cannot be opened nothing is started.
  friend bool operator==(const HealthPort&, const HealthPort&) = default;
};

/// `9500`, `127.0.0.1:9500`, `[::1]:0`.
[[nodiscard]] Result<HealthPort> parse_health_port(std::string_view text);

struct AdminOptions {
  std::optional<HealthPort> health;
  bool has_timer_file = false;  ///< torch's watchdog protocol is served (TORCHELASTIC_ENABLE_FILE_TIMER).
  std::string timer_file;       ///< The FIFO's path; empty: one in the agent's directory
};

}  // namespace elrun::inline v0::launcher
