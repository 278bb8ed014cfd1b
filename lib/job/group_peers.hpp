#pragma once
/// \file The product's Peers: collectives over the workers of the generation.

#include "lib/job/world.hpp"

namespace elrun::inline v0 {

[[nodiscard]] Result<std::unique_ptr<Peers>> join_process_group(Session& session);

}  // namespace elrun::inline v0
