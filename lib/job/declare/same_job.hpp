#pragma once
/// \file Whether all members of a world run the same job.

#include <functional>
#include <string>
#include <vector>

#include "lib/job/declare/agreement.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Two programs, or one with two sets of flags, in one world: said before the first collective of a step mixes them up. On all ranks.
///
/// `has_state`: this process has trained, or brings the state that others train on with. Where somebody has it, a newcomer that differs harms itself alone: it throws Error (`mismatch`), with the
/// lines that differ from those of the first rank with state; the others end the generation and throw Revoked, for the next one comes without it. Where nobody has it, or two that have it differ,
/// all throw that Error alike. Where the generation ends meanwhile, as `expect` (revoked.hpp).
///
/// `tell`: called by the first rank with state where a newcomer differs, with the same text, before that one ends. The newcomer's own output is on another machine, and of the job's log its exit code alone would be there.
void same_job_everywhere(JobWorld& world, const std::vector<Agreement>& mine, bool has_state,
                         const std::function<void(const std::string&)>& tell = {});

}  // namespace elrun::inline v0
