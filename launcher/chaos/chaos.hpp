#pragma once
/// \file `elrun chaos`: a job undisturbed, the same job with failures, and what the two come to.

#include <string_view>

#include "launcher/chaos/chaos_options.hpp"
#include "launcher/options/options.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/timed_files.hpp"

namespace elrun::inline v0::launcher {

/// Before any thread exists. Returns the exit code. Each operation on a checkpoint root ends within `limits`.
[[nodiscard]] int run_chaos(const ChaosOptions& options, const Variables& environment, const StorageLimits& limits, const Clock& clock);

}  // namespace elrun::inline v0::launcher
