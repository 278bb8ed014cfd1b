#pragma once
/// \file The product's Peers: collectives over the workers of the generation.

#include "lib/base/clock.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Under elrun. A peer may still be reading its data before it comes to restore(), or have to come back from a long slot. Its agent and the
/// coordinator know how long that may take: they end who does not come back, and who does not join a job that has trained (start_timeout) or
/// shows no sign of progress (--hang_timeout). So this process has no limit of its own until all have come. Then they connect within
/// `GroupOptions::connect`: a peer that freezes there has joined already in the eyes of the coordinator.
constexpr Duration peers_come_within = 24h;

[[nodiscard]] Result<std::unique_ptr<Peers>> join_process_group(Session& session);

}  // namespace elrun::inline v0
