#pragma once
/// \file A Ledger as programs read it: in /statusz, `elrun status --json` and the event log.

#include <nlohmann/json_fwd.hpp>

#include "launcher/report/ledger.hpp"

namespace elrun::inline v0::launcher {

/// {"wall_seconds": ..., "by_cause": {"steps": ...}, "incidents": how many, "last_incident": {"generation": ..., "why": ..., "at_seconds": {"seen": ...}, "step": ...},
/// "newest_incidents": [...], "last_ranks": [{"rank": ..., "steps": to whose end it came last, "behind_seconds": ...}, ...]}. Seconds of points are since the agent's start.
[[nodiscard]] nlohmann::json json_of(const Ledger& ledger, Instant now);

}  // namespace elrun::inline v0::launcher
