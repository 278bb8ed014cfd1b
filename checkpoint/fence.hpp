#pragma once
/// \file Core: which checkpoints a new start may go on from, and which ones may go.
///
/// A timeline is what the highest published fence inherits, and what was committed under its number or above. A zombie
/// of an older number may still finish its COMMIT: its bytes are good, but nobody was promised them, and they are no
/// part of the timeline. So at most one line of steps exists, whoever thaws when.

#include <optional>
#include <vector>

#include "checkpoint/records.hpp"

namespace elrun::inline v0 {

/// One directory under ckpt/, as its listing shows it.
struct Found {
  CheckpointId id;
  bool committed = false;  ///< Has a COMMIT, valid or not.
  bool quarantined = false;
  friend bool operator==(const Found&, const Found&) = default;
};

/// Committed checkpoints of the timeline, quarantined ones among them, oldest first. Without any fence: all committed.
[[nodiscard]] std::vector<Found> timeline(const std::vector<Found>& found, const std::optional<FenceRecord>& highest);

struct Retention {
  std::vector<CheckpointId> uncommit;  ///< Committed ones to remove, oldest first.
  std::vector<CheckpointId> sweep;     ///< Leftovers of saves that were never committed.
};
/// What may go after a commit under fence `mine`. `line` holds the ids of the timeline. Never the newest `keep` of the
/// timeline (at least 2), never a quarantined one, never anything of a newer fence; and what lies beside the timeline
/// goes only once the timeline itself has `keep`.
[[nodiscard]] Retention retention(const std::vector<Found>& found, const std::vector<CheckpointId>& line,
                                  FenceNumber mine, std::uint32_t keep);

}  // namespace elrun::inline v0
