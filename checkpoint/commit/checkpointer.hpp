#pragma once
/// \file Saves and restores of one member of one generation. It knows storage, not the network: the job carries the
/// encoded values (Start, SaveTicket, PartVote) between ranks, and tells whether it still owns the generation.
///
///   every rank   open_root()                       fails when the root holds another plan or model
///   other ranks  sight() -> RootSight              the same, and what they see of it; the leader hears that before its start
///   leader       start(outside) -> Start           claims the fence, chooses the checkpoint, publishes both
///   every rank   check_shards(check) -> findings   as often as the leader asks for it meanwhile
///   every rank   load(start, fragments, group)     when there is a choice; all ranks the same one, together
///   leader       reject(start, why)                after a rank's load failed with `corrupt`; then start() again
///
///   leader       begin_save(step) -> SaveTicket
///   every rank   write_part(ticket, ...) -> PartVote
///   leader       commit(ticket, votes, still_owner)     or abandon(ticket); then retain(keep)
///
/// A process that neither trains nor starts (`elrun ckptd`) saves under the fence of the leader: take_over(ownership()).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

#include "checkpoint/commit/commit_machine.hpp"
#include "checkpoint/commit/messages.hpp"
#include "checkpoint/commit/own_fence.hpp"
#include "checkpoint/commit/ownership.hpp"
#include "checkpoint/commit/resume.hpp"
#include "checkpoint/commit/root.hpp"
#include "checkpoint/commit/shard_checks.hpp"
#include "checkpoint/commit/sights.hpp"
#include "checkpoint/format/model.hpp"
#include "checkpoint/format/names.hpp"
#include "checkpoint/load/shared_load.hpp"
#include "checkpoint/storage/shard_writer.hpp"
#include "checkpoint/tiers/tier.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0 {

struct Found;
struct Retention;

/// What is known of the job outside of the storage, by its store and its agents, and what other ranks see of the storage.
struct KnownElsewhere {
  std::vector<Witness> witnesses{};
  std::vector<Suspect> suspects{};
  std::uint64_t decided = 0;  ///< The most steps that an agent has seen decided.
  Sights sights{};            ///< Looked for before the call that this is for.
};

/// A checkpoint, and the generation that saved it.
struct NewestCheckpoint {
  CheckpointId id;
  Generation saved_in{};
  friend bool operator==(const NewestCheckpoint&, const NewestCheckpoint&) = default;
};

/// Not thread-safe. What it is given by reference outlives it. Every call may block for as long as the storage does. More methods than 25: one for each step of a save, a start, a load and a
/// removal, of which the decisions are in the cores beside it.
class Checkpointer {
 public:
  /// `at_once`: so many operations are made at the same time where the files of a checkpoint are looked into; from 2 on
  /// `tier` is called by several threads.
  Checkpointer(Tier& tier, const Clock& clock, const Log& log, Saver saver, unsigned at_once = 1);
  /// The same in a directory of a file system.
  Checkpointer(Files& files, const Clock& clock, const Log& log, Path root, Saver saver, unsigned at_once = 1);
  Checkpointer(Checkpointer&&) noexcept;
  ~Checkpointer();

  /// Any rank. Success when the root is empty or absent, or made by the same plan and model. A damaged RUN.json is the leader's
  /// matter, in start().
  Result<void> open_root() const;
  /// Any rank but the leader, before the leader starts: `open_root`, and what this rank sees of the root. What it may not list, or is no directory, it does not see.
  [[nodiscard]] Result<RootSight> sight() const;

  /// Leader. Makes the root when it is absent, claims the next fence, goes on from the checkpoint that `decide` (resume.hpp) chooses, and
  /// quarantines the damaged ones that it met. Fails with `corrupt` when there were checkpoints and none can be used, with `io` where one that it would choose cannot be read, and with `not_found`
  /// when one was acknowledged and is missing, by the storage itself or by `outside`: before it has written anything, unless
  /// `Saver::begin_anew` gives it up. So it does, whatever is given up, where other ranks have seen more of the root than the leader sees (`see_one_storage`). A job is never silently begun again, or set back. Where the root cannot be written and holds
  /// a checkpoint that can be used, that one is the choice, without a fence: then only a `start_with_state()` that succeeds permits saves.
  /// `ask`: has all ranks look into the shards of a checkpoint; without it the leader looks into all of them.
  Result<Start> start(const KnownElsewhere& outside = {}, const AskRanks& ask = {});
  /// The same for a job that goes on from what its members hold after `step` steps, and only saves. Checkpoints of later steps are not what it came from: the
  /// fence does not inherit them, a warning names them, and they are kept. Fails with `not_found` when the root is gone as a whole.
  Result<Start> start_with_state(std::uint64_t step, const KnownElsewhere& outside = {});

  /// Leader: the checkpoint from which `start` would go on now; nothing where there is none. Fails as `start` does. Claims no fence, and writes nothing.
  [[nodiscard]] Result<std::optional<NewestCheckpoint>> newest(const KnownElsewhere& outside = {}) const;

  /// Any rank, while the leader starts: looks into its share of the shards.
  ShardFindings check_shards(const ShardQuestion& check) const;

  /// All ranks of `group`, with the start that the leader published. Fills `fragments` and returns the host state; every block is read by one rank, and
  /// checked. The same result on all ranks. After a failure the fragments' contents are unspecified.
  Result<std::vector<Aux>> load(const Start& start, std::span<const Fragment> fragments, LoadGroup& group, LoadLimits limits = {});
  /// The same for one rank alone, which reads all that it needs.
  Result<std::vector<Aux>> load(const Start& start, std::span<const Fragment> fragments);

  /// Leader, after a load of this choice failed with `corrupt`, `not_found` or `io` somewhere: reads all of it itself.
  /// Where it finds damage too, the checkpoint is marked, and the next `start()` passes it over. Where it finds none,
  /// this fails: that rank does not see what the leader sees, and the checkpoint is whole. Where it cannot read (`io`) this fails with that, for another time may be a better one.
  Result<void> reject(const Start& start, const Failure& why);

  /// Leader, after start(). Refused when a newer fence is on the storage; the failure names both jobs. Where there is too little space for it, what may go by `room` is removed first:
  /// nothing else would, before a save succeeds.
  Result<SaveTicket> begin_save(std::uint64_t step, std::uint64_t aux_bytes = 0, MakeRoom room = {});

  /// Any rank. Never fails: a vote says why not. Nothing is written where this rank sees a COMMIT. Fragments of all ranks together cover each kind of each unit once.
  PartVote write_part(const SaveTicket& ticket, std::span<const Fragment> fragments, std::span<const Aux> aux = {},
                      const ShardWriting& how = {});

  /// Leader, with one vote per rank. `still_owner` asks the job's store whether this generation is current; it is
  /// asked before the commit and, as is the fence on the storage, again after it; then an acknowledgement is written beside the fence.
  /// Success: from here on no crash loses this checkpoint, and its loss by other ways is noticed.
  Result<void> commit(const SaveTicket& ticket, std::span<const PartVote> votes, const std::function<Result<void>()>& still_owner);

  /// Leader: fails where a later start has claimed a fence of the root, or this one's is gone. No save under this fence can be committed then.
  [[nodiscard]] Result<void> check_fence() const;

  // The same, action by action, for a leader that does not wait in a call: the machine says what comes next, `perform` does it on the storage.
  // One action is over before the next one begins, and `retain` waits until the save is over: it sweeps what is not committed.
  /// A save from its first action on.
  [[nodiscard]] CommitMachine new_save(std::uint64_t step, std::uint64_t aux_bytes = 0, const CommitLimits& limits = {},
                                       MakeRoom room = {}) const;
  /// A save whose ticket is out, from its votes on.
  [[nodiscard]] CommitMachine save_of(const SaveTicket& ticket, const CommitLimits& limits = {}) const;
  /// Any action but `AskOwner`, which is the job's to answer.
  [[nodiscard]] CommitAnswer perform(const CommitAction& action);
  /// What the job hears of a save that is over.
  [[nodiscard]] Result<void> outcome(const CommitMachine& save) const;

  /// Of a checkpoint under this root.
  [[nodiscard]] Path path_of(const CheckpointId& id) const { return root_.where(checkpoint_directory(id)); }
  /// Leader, after a commit: its acknowledgement as text, for others to remember.
  [[nodiscard]] const std::string& acknowledged() const { return fence_.acknowledged(); }

  /// Leader, after start(): what another process needs that commits under this fence in its place (staging/slot_save.hpp).
  [[nodiscard]] Ownership ownership() const { return {fence_.number(), timeline_, whole_, fence_.given_up()}; }
  /// In that process, in place of start().
  void take_over(Ownership of);
  /// In the process that claimed the fence: the other one has committed this.
  void committed_elsewhere(const CheckpointId& id);

  /// Leader. Removes what an uncommitted save left; best effort, and never a committed one.
  void abandon(const SaveTicket& ticket);

  /// Leader. Keeps the newest `keep` (at least 2) checkpoints of the timeline that pass all checks but those of their data blocks. Removes older
  /// ones, a few at a time, and leftovers of dead saves. A failure leaves every kept one untouched.
  Result<void> retain(std::uint32_t keep);

 private:
  Result<std::optional<RunRecord>> read_own_run() const;
  Result<RootView> look_at_first(const KnownElsewhere& outside, std::vector<std::string>& notes) const;
  Result<Start> begin(const KnownElsewhere& outside, const AskRanks& ask);
  Result<Manifest> manifest_to_load(const Start& start) const;
  Result<Start> begin_with_state(std::uint64_t step, const KnownElsewhere& outside);
  Result<void> claim_fence(const RootView& before);
  Result<Start> start_without_fence(Findings findings, std::vector<std::string> notes, const AskRanks& ask, Failure why);
  void tell(Start& start, const Resumption& go) const;
  void drive(CommitMachine& save, std::optional<CommitAction> next, const std::function<Result<void>()>& still_owner);
  Result<void> write_part_files(const SaveTicket& ticket, std::span<const Fragment> fragments, std::span<const Aux> aux,
                                const ShardWriting& how, PartVote& vote);
  void make_room(const commit::AskSpace& before);
  Result<std::size_t> remove_leftovers(const commit::AskSpace& before);
  Result<std::size_t> remove_beyond(const commit::AskSpace& before);
  Result<Retention> what_goes(std::vector<Found>& found, const std::vector<CheckpointId>& promised, const std::string& root_identity,
                              std::uint32_t keep);

  std::unique_ptr<Tier> own_tier_;  // where it was given files
  CheckpointRoot root_;
  OwnFence fence_{};                      // claimed by start()
  std::optional<CheckpointId> tried_{};   // the newest name that a save began with
  std::vector<CheckpointId> doubtful_{};  // whose COMMIT was asked for, and may come to be there yet
  std::vector<CheckpointId> timeline_{};  // inherited by our fence, then committed by it, oldest first
  std::vector<CheckpointId> whole_{};     // of these: that this process has looked into, or made
  std::vector<Rejected> rejected_{};      // passed over even where a quarantine could not be written
};

}  // namespace elrun::inline v0
