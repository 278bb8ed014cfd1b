#pragma once
/// \file What a decided step does to this rank's state.

#include "lib/job/job_parts.hpp"

namespace elrun::inline v0 {

/// Updates this rank's shard, whatever becomes of the generation.
void apply_decided(JobParts& job);
/// Of the step's gradient.
[[nodiscard]] float norm_of(const JobParts& job, const Decision& decision);

}  // namespace elrun::inline v0
