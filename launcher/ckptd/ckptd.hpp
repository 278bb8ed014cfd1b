#pragma once
/// \file `elrun ckptd`: the process of a node that writes checkpoints to the storage. Its agent starts it; it outlives workers and generations.

#include "launcher/options/options.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// Standard input is the listening socket that workers connect to; ELRUN_SOCKET leads to the agent. Ends with the agent, never before.
int run_ckptd(const Variables& environment, const Clock& clock, LogStream& lines);

}  // namespace elrun::inline v0::launcher
