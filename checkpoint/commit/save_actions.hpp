#pragma once
/// \file Shell: does on the storage what the commit machine asks for.

#include <vector>

#include "checkpoint/commit/commit_machine.hpp"
#include "checkpoint/commit/own_fence.hpp"
#include "checkpoint/commit/root.hpp"

namespace elrun::inline v0 {

/// What saves of one owner act upon. All of it outlives this.
struct SaveContext {
  const CheckpointRoot& root;
  OwnFence& fence;
  const std::vector<CheckpointId>& line;  ///< The timeline so far, oldest first.
};

/// Any action but `AskOwner`, which is a question to the job. Blocks for as long as the storage does.
[[nodiscard]] CommitAnswer perform(const SaveContext& scene, const CommitAction& action);

/// Removes what an uncommitted save left; best effort, and never a committed one.
void remove_uncommitted(const CheckpointRoot& root, const SaveTicket& ticket);

}  // namespace elrun::inline v0
