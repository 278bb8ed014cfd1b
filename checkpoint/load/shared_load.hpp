#pragma once
/// \file Shell: one load by all ranks of a world. Each reads its share of the checkpoint (read_share.hpp) and sends on what others need of it.
///
/// All ranks say what they need; each works out its share, and tells the others what comes from it in which round. In a round each rank sends one window
/// of what it has read, and whether its reading has failed; there are as many rounds as the rank with most to read has windows, of what is for it alone, too.
/// After the round in which a rank says so all of them stop, so nobody waits for what does not come, and no round takes longer than a window.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/records.hpp"
#include "checkpoint/load/block_reader.hpp"
#include "checkpoint/load/load_group.hpp"
#include "checkpoint/tiers/tier.hpp"

namespace elrun::inline v0 {

struct SharedLoad {
  Tier& tier;
  const std::string& directory;  ///< Of the checkpoint, below the root.
  const Manifest& manifest;      ///< The same on all ranks.
  std::span<const Fragment> fragments;
  LoadGroup& group;
  LoadLimits limits{};
  std::function<Failure(Failure)> told{};  ///< Adds who and what to a failure of this rank, before the others hear of it.
};

/// Fills the fragments and returns the host state. On all ranks; the result is a success on all, or the same failure, unless the generation ends. After a failure the
/// fragments' contents are unspecified.
[[nodiscard]] Result<std::vector<Aux>> load_shared(const SharedLoad& load);

}  // namespace elrun::inline v0
