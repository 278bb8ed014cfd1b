#pragma once
/// \file *Settle*: what became of the step for which members voted in the generation before. Core: all members work out the same from the
/// same statuses.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/job/commit/commit.hpp"
#include "lib/job/commit/decision.hpp"
#include "lib/job/declare/layout.hpp"
#include "lib/job/recover/member_status.hpp"

namespace elrun::inline v0 {

/// A checkpoint of this job; step 0: there is none.
struct SavedCheckpoint {
  std::uint64_t step = 0;
  Generation saved_in{};
  bool is_newest = false;  ///< The storage was asked, or there is none: nobody has saved a newer one.
};
/// Whether others may have trained, and saved, without any of the members that have a state, as the numbers of their generations tell. So it is where the world is made of spares that were members
/// long ago.
[[nodiscard]] bool may_have_missed_saves(std::span<const MemberStatus> statuses);
/// The same where no number is missing, and another coordinator began this generation than the one of each of those states, and of each part of an in-memory checkpoint: the one before may have gone on
/// without them, and all of its members have ended since. As a rule it has not: it was lost, or handed over.
[[nodiscard]] bool may_have_missed_saves_of_another_coordinator(std::span<const MemberStatus> statuses);
/// Whether `saved` has more steps than the state of any member, and is of a later generation than those states: of an earlier one, it was passed over.
[[nodiscard]] bool is_newer(const SavedCheckpoint& saved, std::span<const MemberStatus> statuses, Sums sums);

/// An in-memory checkpoint of which members hold all parts.
struct CompleteCheckpoint {
  std::uint64_t step = 0;
  Generation taken_in{};
  std::vector<std::optional<Cut>> held;  ///< By rank: the shard of it that a member holds.
};

/// The step of an in-memory checkpoint from which members would go on if nobody has saved a newer one, and none of them can tell: its holders were away for a generation, or hold parts of a newer
/// one that is not whole any more and may have been saved since. Nothing: it is not so.
[[nodiscard]] std::optional<std::uint64_t> may_be_saved_beyond(const Layout& layout, std::span<const MemberStatus> statuses, Sums sums);

struct Settled {
  std::uint64_t newest_step = 0;  ///< Decided steps from which all go on,
  std::uint64_t known_step = 0;   ///< and those of which a member knows: more where not all parts of their state are there any more.
  Generation decided_in{};        ///< Where the last of `newest_step` was decided.
  std::vector<Recovery> members;  ///< By rank: what it does before the next step.
  /// Of the newest step. Nothing: whoever has its state got it from a member or a checkpoint, and knows that it was decided, but not to what
  /// the votes came.
  std::optional<Decision> decision;
  /// The first member that was there before, so that whoever prints knows what was printed last; else the first.
  std::uint32_t printer = 0;
  /// Steps of a checkpoint that is newer than all that members have, in-memory checkpoints included. It was saved by others since. All load it; no member's state counts. 0: there is none.
  std::uint64_t newer_checkpoint = 0;
  /// The newest in-memory checkpoint that is whole, and may be gone on from. Where nobody goes on from it, one that all holders of any have is preferred, and all others are given up.
  std::optional<CompleteCheckpoint> in_memory;
  /// All go on from it, for members have no whole state of as many steps.
  bool goes_to_memory = false;

  /// `rank` voted for the newest step, which is decided, and applies it now.
  [[nodiscard]] bool applies(std::uint32_t rank) const { return members[rank] == Recovery::apply && decision.has_value(); }
};
/// The newest state of which members have all parts, host state too, once those who voted for its last step have applied it. It is not older than the newest checkpoint of
/// which a member or its agent knows: there all go back to that one. Where no such state is there, the newest of which a member knows.
///
/// An in-memory checkpoint is such a state, too. It counts where one of its holders had a place in every generation since it was made, or `saved` is the newest on storage: else others may have
/// saved a newer one.
///
/// A member may hold two shards, of a recut that did not end for all. Where one member knows that all had their new shards, all who have theirs keep these. So does who applies a step for
/// which it voted in the generation of its recut: nobody votes there without its new shard, and its sums are of that one. Where nobody knows, all others go back to the old ones; but where these are not all of the state, for a
/// holder died, and the new ones are, they keep the new ones. In `statuses` each member then has the shard that it keeps.
///
/// Where `saved` is newer than all that members have (`is_newer`), in `statuses` no member has a state then. Where it is newer than an in-memory checkpoint, that one does not count.
[[nodiscard]] Settled settle(const Layout& layout, std::span<MemberStatus> statuses, Sums sums, const SavedCheckpoint& saved = {});

/// By rank: its parameters are those of the checkpoint, bit for bit. `statuses`: as they are once all have done what was settled.
[[nodiscard]] std::vector<bool> have_parameters_of(const CompleteCheckpoint& checkpoint, std::span<const MemberStatus> statuses, Sums sums);

/// Why all load a checkpoint although members have a state, in a sentence. Nothing: it is not so.
[[nodiscard]] std::optional<std::string> newer_checkpoint_line(const Settled& settled);
/// Where the members go on with their own state although others decided more steps, in a sentence: how many are repeated. Nothing: nobody knows of such steps.
[[nodiscard]] std::optional<std::string> missed_steps_line(std::span<const MemberStatus> statuses, const Settled& settled);

/// Why the world goes on with fewer steps than a member has, in a sentence or two. Nothing: it does not.
[[nodiscard]] std::optional<std::string> going_back_line(std::span<const MemberStatus> statuses, const Settled& settled);

/// Whether all who applied the newest decided step, and all who voted for it and will apply it, do so with the same values.
[[nodiscard]] Result<void> check_same_update(std::span<const MemberStatus> statuses, std::uint64_t newest_step);

/// The statuses as they are once all have done what `settled` says. `whole_after_update`: an update leaves all parameters of a rank up to
/// date, not only those of its shard.
void bring_up_to_date(std::span<MemberStatus> statuses, const Settled& settled, bool whole_after_update);

}  // namespace elrun::inline v0
