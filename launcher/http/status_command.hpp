#pragma once
/// \file `elrun status`: asks the agents of this machine what runs.

#include "launcher/options/options.hpp"
#include "lib/base/clock.hpp"

namespace elrun::inline v0::launcher {

/// Prints a block for each agent that answers; returns the exit code: 69 when none did, or one that is there did not.
[[nodiscard]] int run_status(const StatusOptions& options, const Variables& environment, const Clock& clock);

}  // namespace elrun::inline v0::launcher
