#pragma once
/// \file `elrun ckpt`: reads checkpoints for people, and never writes.

#include "launcher/options/options.hpp"
#include "lib/base/clock.hpp"

namespace elrun::inline v0::launcher {

/// Returns the exit code.
[[nodiscard]] int run_ckpt(const CkptOptions& options, const Clock& clock);

}  // namespace elrun::inline v0::launcher
