#pragma once
/// \file Core: which checkpoints a new start may go on from, and which ones may go.
///
/// A timeline is what the highest published fence inherits, and what was committed under its number or above. A zombie
/// of an older number may still finish its COMMIT: its bytes are good, but nobody was promised them, and they are no
/// part of the timeline. So at most one line of steps exists, whoever thaws when.

#include <optional>
#include <string>
#include <vector>

#include <elrun/result.hpp>

#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

/// One directory under ckpt/, as its listing shows it.
struct Found {
  CheckpointId id;
  bool committed = false;  ///< Has a COMMIT, valid or not.
  bool quarantined = false;
  std::string unreadable{};  ///< Why its directory could not be listed, and so nothing else is known of it.
  std::string damage{};      ///< Quarantined: what its mark says was seen; empty: not known.
  friend bool operator==(const Found&, const Found&) = default;
};

/// Committed checkpoints of the timeline, oldest first, with those that are quarantined, and those that cannot be read and so may
/// be committed. Without any fence: all committed.
[[nodiscard]] std::vector<Found> timeline(const std::vector<Found>& found, const std::optional<FenceRecord>& highest);

/// What a look at the fences of a root found.
struct FencesSeen {
  std::vector<FenceNumber> numbers;  ///< Claimed or published, ascending.
  std::optional<Author> newest;      ///< Whose the newest is, where it is newer than one's own and can be read.
};
/// Whether the owner of fence `mine` may save to `root`: only while its fence is the newest there. Fails, naming both jobs, where another is
/// newer, and with `not_found` where this one is gone.
[[nodiscard]] Result<void> may_save(const FencesSeen& seen, FenceNumber mine, const Author& author, const std::string& root);
/// Whether a start of `author` may claim a fence above `newest`, which is of `owner` where that is known. A leader that was frozen would take the root
/// from a later generation of its own job.
[[nodiscard]] Result<void> may_claim(FenceNumber newest, const std::optional<Author>& owner, const Author& author, const std::string& root);
/// What a job may do about another's newer fence.
[[nodiscard]] Failure superseded(const FencesSeen& seen, FenceNumber mine, const Author& author, const std::string& root);

struct Retention {
  std::vector<CheckpointId> keep;      ///< The newest of the timeline, oldest first.
  std::vector<CheckpointId> uncommit;  ///< Committed ones to remove, oldest first.
  std::vector<CheckpointId> sweep;     ///< Leftovers of saves that were never committed.
};
/// What may go after a commit under fence `mine`. `line` holds the ids of the timeline, `promised` those that were acknowledged or
/// given up. Of the timeline the oldest go, never the newest `keep` (at least 2). Never a quarantined or unreadable one, never
/// anything of a newer fence, never a committed one beside the timeline; and what lost its COMMIT although it was promised is
/// no leftover: all of these are for a person to remove.
[[nodiscard]] Retention retention(const std::vector<Found>& found, const std::vector<CheckpointId>& line,
                                  const std::vector<CheckpointId>& promised, FenceNumber mine, std::uint32_t keep);

/// What became of other saves under one's own fence, as far as the one who saves knows.
enum class EarlierSaves {
  may_go_on,  ///< Another process may write any of them.
  are_over,   ///< Those of lower steps are. One of this step may be written by a worker that does not wait for the writer who asks.
  all_over,   ///< Those of this step are, too: what is there of them are tries that failed, or were cut off.
};
/// What may go before a save for which there is too little space.
struct MakeRoom {
  EarlierSaves earlier = EarlierSaves::are_over;
  std::uint32_t keep = 0;  ///< And of the committed ones the oldest beyond so many, as after a save. 0: none.
};
/// What may go before a save of `step` under fence `mine` for which there is too little space, while nothing newer is committed: what dead saves left. A save under an older fence can be
/// promised to nobody any more. Under our own, one of a later step may be written by a worker that does not wait for the writer who asks.
[[nodiscard]] std::vector<CheckpointId> leftovers(const std::vector<Found>& found, const std::vector<CheckpointId>& promised,
                                                  FenceNumber mine, std::uint64_t step, EarlierSaves earlier);

}  // namespace elrun::inline v0
