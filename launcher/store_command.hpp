#pragma once
/// \file `elrun store`: a coordinator in a process of its own.

#include <cstdint>

#include "launcher/options/options.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

struct StartRefusal;

/// Serves the coordinator alone until the job is over or a signal comes; returns the exit code. What keeps it from starting is said by `refuse`.
[[nodiscard]] int run_store(const StoreOptions& options, std::uint64_t generation_floor, const StartRefusal& refuse, const Clock& clock,
                            LogStream& lines);

}  // namespace elrun::inline v0::launcher
