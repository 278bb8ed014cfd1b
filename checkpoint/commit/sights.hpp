#pragma once
/// \file Core: whether all ranks of a start see the storage that its leader sees. Where a mount is missing on the leader's node alone, or is an old one, the leader would begin
/// at step 0, or go back, although the checkpoints are there. So the other ranks say before its look what they see, and nothing of that may be missing in it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/result.hpp>

#include "checkpoint/commit/resume.hpp"
#include "checkpoint/format/names.hpp"

namespace elrun::inline v0 {

/// What one rank sees of a checkpoint root, from its RUN.json and the names under gens/.
struct RootSight {
  std::string root{};                    ///< Identity of the root; empty: there is no RUN.json that can be read.
  FenceNumber fence = 0;                 ///< The highest published; 0: none.
  std::optional<CheckpointId> newest{};  ///< The newest acknowledged one: of the highest fence, and there of the last step. Nothing: none.
  friend bool operator==(const RootSight&, const RootSight&) = default;
};
/// `names`: of gens/.
[[nodiscard]] RootSight root_sight(std::string root, std::span<const std::string> names);

struct RankSight {
  std::uint32_t rank = 0;
  std::string node{};
  RootSight sees{};
};

/// What the ranks beside the leader see. Each of them looked before the leader does.
struct Sights {
  std::vector<RankSight> ranks{};  ///< Without the leader; empty: nobody was asked.
  std::string leaders_node{};
  unsigned looks = 1;  ///< How often these ranks have looked, with this time.
};

/// A client of a network file system may go by what it has cached, for half a minute and more. So often ranks look before a difference ends a start: with the pauses of a start that waits for its
/// storage (1 s, 2 s, 4 s, 8 s, 16 s) that is as long.
constexpr unsigned looks_max = 6;

/// Success where the leader's look `leaders` has all that the others saw: no other root than theirs, no lower fence, and no older newest checkpoint. That it has more proves nothing, for the
/// others looked earlier: a rank that does not see the checkpoint cannot load it. Else the failure names a rank that sees more, the leader's, and what each of them sees: `not_found`, to be tried
/// again (`may_be_seen_yet`) as long as ranks may look once more, then for a person to change.
[[nodiscard]] Result<void> see_one_storage(const RootView& leaders, const Sights& others);
/// Whether a failure is of `see_one_storage`, and may be none at the next look.
[[nodiscard]] bool may_be_seen_yet(const Failure& why);

}  // namespace elrun::inline v0
