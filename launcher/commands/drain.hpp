#pragma once
/// \file `elrun drain`: asks the agents of this machine to leave, and waits until they have. A container's preStop hook, for instance.

#include "launcher/options/options.hpp"
#include "lib/base/clock.hpp"

namespace elrun::inline v0::launcher {

/// Returns the exit code: 0 when all have left, 69 when none was there or one is still there at the deadline.
[[nodiscard]] int run_drain(const DrainOptions& options, const Variables& environment, const Clock& clock);

}  // namespace elrun::inline v0::launcher
