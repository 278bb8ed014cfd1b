#pragma once
/// \file Plan: what a start with these options would do on this node, as JSON for `--dry_run`. It holds no secret, and
/// of the environment only what elrun itself sets for a worker.

#include <string>
#include <variant>

#include "launcher/options/environment.hpp"
#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

[[nodiscard]] std::string plan_text(const LaunchOptions& options, const Variables& environment,
                                    const std::variant<Command, NoCommand>& command);

}  // namespace elrun::inline v0::launcher
