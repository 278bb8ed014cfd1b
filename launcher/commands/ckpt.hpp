#pragma once
/// \file `elrun ckpt`: reads checkpoints for people, and never writes.

#include "launcher/options/options.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/timed_files.hpp"

namespace elrun::inline v0::launcher {

/// Returns the exit code. Each operation on the storage ends within `limits`.
[[nodiscard]] int run_ckpt(const CkptOptions& options, const StorageLimits& limits, const Clock& clock);

}  // namespace elrun::inline v0::launcher
