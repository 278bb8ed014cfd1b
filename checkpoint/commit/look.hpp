#pragma once
/// \file Shell: what a start finds under a checkpoint root, for the decision of resume.hpp.

#include <span>
#include <string>
#include <vector>

#include "checkpoint/commit/resume.hpp"
#include "checkpoint/commit/root.hpp"
#include "checkpoint/commit/shard_checks.hpp"

namespace elrun::inline v0 {

/// What is there, and what is known to have been there: by the storage itself, and by `outside` (the job's store and its agents). Writes
/// nothing. Fences from `below` on belong to this start and later ones, and do not count. `notes` gets a line for each that is passed over.
[[nodiscard]] Result<RootView> look(const CheckpointRoot& root, FenceNumber below, std::span<const Witness> outside,
                                    std::vector<std::string>& notes);

/// What `decide` comes to. Looks into each checkpoint that it asks for: the chain from COMMIT to the shards' block tables is read, that of the shards by all
/// ranks where they can be asked. Writes nothing. A failure is the decision's own, or what neither damage nor a bad moment of the storage explains.
[[nodiscard]] Result<Resumption> decided(const CheckpointRoot& root, Findings findings, const AskRanks& ask = {});

}  // namespace elrun::inline v0
