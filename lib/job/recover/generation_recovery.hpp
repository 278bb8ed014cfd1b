#pragma once
/// \file GenerationRecovery: how far this member has come in a generation, from the members' statuses to a state that all have.
///
/// | stage   | what is known                                                                                             | next                      |
/// |---------|-----------------------------------------------------------------------------------------------------------|---------------------------|
/// | joining | nothing: what members bring was not told                                                                  | `gather`, `settle`, `end_settling` |
/// | settled | `statuses()`, `settled()`: which step was decided last, and who applies it                                | `plan_transfer`, `share`  |
/// | shared  | `transfer()`: all have the parameters and moments of that step, or get them beside slots; newcomers lack host state until all are at `next_step()` | `finish` |
/// | ready   | all have everything                                                                                       | `begin` of the next generation |
///
/// A generation can end at each of them, and `begin` leads back to the first. It plans and remembers; it moves no state.
/// Called by the job's thread. Collectives are called on all ranks in the same order, and leave as `expect` (revoked.hpp) says.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/job/recover/copies.hpp"
#include "lib/job/recover/member_status.hpp"
#include "lib/job/recover/settle.hpp"
#include "lib/job/recover/state_transfer.hpp"
#include "lib/job/state/shard_map.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Its 31 methods are the stages, and what `settle` decided, by name.
class GenerationRecovery {
 public:
  enum class Stage : std::uint8_t { joining, settled, shared, ready };
  [[nodiscard]] Stage stage() const { return stage_; }
  [[nodiscard]] bool is_ready() const { return stage_ == Stage::ready; }
  void begin() { stage_ = Stage::joining; }
  /// This member has a place in generation `here`, whatever comes of it.
  void attend(const Generation& here);
  /// Since all had the state that this member has, it had a place in each generation up to the one that `attend` was told last, as far as numbers tell.
  [[nodiscard]] bool missed_none() const { return missed_none_; }
  /// Another coordinator began that one than the generation in which all had that state. The one before may have begun a generation of the same number, without this member.
  [[nodiscard]] bool coordinator_changed() const { return coordinator_changed_; }
  /// The storage has said in generation `here`, on all ranks, what others may have saved before it: nothing of the coordinator before is unknown any more.
  void know_what_was_saved(const Generation& here) { coordinator_ = here.lineage; }
  /// In the process of a run of the program before this one, with the state of that one.
  void continue_from(const GenerationRecovery& before) { no_gap_until_ = before.no_gap_until_, coordinator_ = before.coordinator_; }

  /// Collective: the members' statuses.
  void gather(JobWorld& world, const MemberStatus& mine);
  /// What became of the last step. `saved`: the same on all ranks. Throws Error (`mismatch`) on all alike where members applied it with different values.
  void settle(const Layout& layout, Sums sums, const SavedCheckpoint& saved = {});
  /// All that apply that step have done so. `whole_after_update`: as `bring_up_to_date`.
  void end_settling(bool whole_after_update);
  /// By rank.
  [[nodiscard]] const std::vector<MemberStatus>& statuses() const { return statuses_; }
  [[nodiscard]] const Settled& settled() const { return settled_; }
  /// Some member's program cannot begin where it is; see MemberStatus.
  [[nodiscard]] bool somebody_has_begun() const;
  /// Once it is known what is shared: some member's program is past `restore()`, or goes there with its place in the loop. Where a checkpoint was loaded and all
  /// come out of `restore()`, nobody's is.
  [[nodiscard]] bool somebody_runs() const;
  /// By rank, the number of its node.
  [[nodiscard]] std::vector<std::uint32_t> nodes() const;

  /// Who sends which state to whom, for shards as in `shards`, and whether beside slots.
  const StateTransfer& plan_transfer(const Layout& layout, const ShardMap& shards, const TransferFacts& facts = {});
  [[nodiscard]] const StateTransfer& transfer() const { return transfer_; }
  /// Once the transfer is planned: all members bring their parameters from one generation, in which their newest step was decided, so these were compared there
  /// before it. (Or they were read there from a checkpoint, with its checksums.)
  [[nodiscard]] bool were_compared() const;
  /// The member that gives what all have alike.
  [[nodiscard]] const MemberStatus& giver() const { return statuses_[transfer_.giver]; }
  /// What comes beside slots sets out now. False: it has done so before.
  [[nodiscard]] bool begins_transfer() { return !std::exchange(transfer_begun_, true); }
  /// A step was decided since, so all have theirs. False: it was known before.
  [[nodiscard]] bool ends_transfer() { return std::exchange(transfer_begun_, false); }
  /// It is known who gets which state.
  void share();
  /// This member has it, in this place. Where it comes beside slots that is after `share`. Until then what this member says of the last generation in which all had the state is of an earlier one.
  void state_came(const Membership& here);
  /// All have the state in this one.
  void know_copies() { copies_ = copies_of(statuses_); }
  /// Of the last generation that came so far.
  [[nodiscard]] Copies copies() const { return copies_; }
  [[nodiscard]] const PlaceBefore& before() const { return before_; }
  /// The nodes of that generation.
  [[nodiscard]] const PreviousNodes& nodes_before() const { return nodes_before_; }

  /// Members that were there before run evaluations; newcomers serve them until all have everything.
  [[nodiscard]] bool runs_evaluations(std::uint32_t rank) const { return is_ready() || !transfer_.newcomers[rank]; }
  /// Collective, once shared: whether a member is still in an evaluation. `i_am`: this one. Throws Error (`mismatch`) where another one with the same state
  /// goes on with the next step. `step`: decided steps, for the message.
  [[nodiscard]] bool somebody_evaluates(JobWorld& world, bool i_am, std::uint64_t step);
  /// What the evaluation came to that this member is in, where another one decided it and this one did not hear of that. No member can be ahead by
  /// two. `step`, `evaluations`: decided here.
  [[nodiscard]] std::optional<ByteVector> evaluation_decided_elsewhere(std::uint64_t step, std::uint64_t evaluations) const;
  /// Once all are at `next_step()`: newcomers may have got what is frozen before others' programs wrote to it. After a decided step a program goes on from one call to the next without its
  /// peers, and members give state in any of these calls: some in an evaluation, one behind it, or in a generation before this one.
  [[nodiscard]] bool frozen_may_be_older() const;
  void finish() { stage_ = Stage::ready; }

 private:
  Stage stage_ = Stage::joining;
  std::vector<MemberStatus> statuses_;
  Settled settled_;
  StateTransfer transfer_;
  bool transfer_begun_ = false, evaluated_ = false;  // since the transfer was planned
  Copies copies_ = Copies::never_apart;
  PlaceBefore before_;
  PreviousNodes nodes_before_;
  bool missed_none_ = false, coordinator_changed_ = false;
  std::uint64_t no_gap_until_ = 0;  // since all had the state, this member had a place in each generation up to this number
  Lineage coordinator_{};           // that began the last generation of which nothing is unknown
};

}  // namespace elrun::inline v0
