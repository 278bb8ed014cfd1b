#pragma once
/// \file Whether all members of a world run the same job.

#include <vector>

#include "lib/job/declare/agreement.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Two programs, or one with two sets of flags, in one world: said before the first collective of a step mixes them up. On all ranks. Throws
/// Error (`mismatch`) on all ranks alike, with the lines that differ; where the generation ends meanwhile, as `expect` (revoked.hpp).
void same_job_everywhere(JobWorld& world, const std::vector<Agreement>& mine);

}  // namespace elrun::inline v0
