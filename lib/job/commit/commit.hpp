#pragma once
/// \file When a step is decided, who may apply it, and what a change of the world leaves. (A checkpoint's COMMIT is in checkpoint/commit.)
///
/// A member votes for a step once it holds, locally and final, every byte that its own part of `apply` reads. Whoever
/// has heard the votes of all members of one generation knows that the step is decided, and applies it whatever happens
/// then. A new generation first collects what its members know: if one of them knows that the step is decided, all who
/// voted for it still hold their bytes and apply it; if none does, nobody alive has applied it and it is done again.
///
/// Members that never heard of a step's decision may vote for the step and decide it again in a later generation. If sums have the
/// same bits in every world, that makes no difference. If not, the generation tells which votes and states belong together.

#include <cstdint>
#include <span>
#include <vector>

#include <elrun/ids.hpp>

namespace elrun::inline v0 {

/// Of two generations: the later one. Of two with one number, which are of two lineages, all members take the same.
[[nodiscard]] bool is_newer(const Generation& a, const Generation& b);

/// What one member knows, as counts: applied = 3 says that steps 0, 1 and 2 are in its state.
struct Knowledge {
  std::uint64_t applied = 0;
  std::uint64_t decided = 0;  ///< At least `applied`.
  std::uint64_t voted = 0;    ///< At least `decided`, at most one above `applied`.
  Generation decided_in{};    ///< The last decided step, or where the state was read from storage. Nothing at the beginning.
  Generation voted_in{};      ///< The last vote.
  friend constexpr bool operator==(const Knowledge&, const Knowledge&) = default;
};

struct Vote {
  Generation generation{};
  std::uint64_t step = 0;  ///< Number of the step voted for: its voter has applied as many.
  bool finite = true;      ///< Every gradient of the voter's shard was a number. One `false` leaves the update out.
  friend constexpr bool operator==(const Vote&, const Vote&) = default;
};

/// One member's part in one generation. A value.
class StepCommit {
 public:
  StepCommit() = default;
  /// `applied` steps are in the state, the last of them decided in `decided_in`; bytes held for a vote in an earlier generation are gone.
  StepCommit(Membership me, std::uint64_t applied, Generation decided_in = {});

  [[nodiscard]] const Knowledge& knowledge() const { return known_; }
  /// My vote for the next step, to be told to all, this member included. Once per step.
  [[nodiscard]] Vote vote(bool finite);
  /// False: the vote is of another generation, for another step or from nobody, and was dropped.
  [[nodiscard]] bool hear(Rank from, const Vote& vote);
  [[nodiscard]] bool decided() const { return known_.decided > known_.applied; }
  /// Of a decided step: whether all gradients of all members were numbers.
  [[nodiscard]] bool finite() const { return finite_; }
  /// The decided step is in the state. Calling it again does nothing.
  void applied();
  /// What `recover` found out: the step for which this member voted is decided, and where.
  void learn(std::uint64_t decided, const Generation& in);
  /// Which members' votes for the next step were heard.
  [[nodiscard]] const std::vector<bool>& received() const { return received_; }

 private:
  Membership me_{};
  Knowledge known_{};
  std::vector<bool> received_;
  std::uint32_t received_count_ = 0;
  bool finite_ = true;
};

/// Whether the sums of a step have the same bits in every generation.
enum class Sums : std::uint8_t { alike, of_generation };

/// What a member of a new generation does before the next step.
enum class Recovery : std::uint8_t {
  go_on,  ///< Its state is the newest.
  apply,  ///< It voted for a step that is decided and holds the bytes: it applies it now.
  fetch,  ///< It lacks a decided step, or all: state comes from peers or a checkpoint.
};
/// So many decided steps, the last of them decided in `in`.
struct DecidedState {
  std::uint64_t steps = 0;
  Generation in{};
  friend constexpr bool operator==(const DecidedState&, const DecidedState&) = default;
};
/// Those that some member has or knows to be decided, the newest first. `members`: those that have a state. With sums that are alike each number of steps is there
/// once, with the newest generation of which a member knows that they were decided there.
[[nodiscard]] std::vector<DecidedState> decided_states(std::span<const Knowledge> members, Sums sums);

struct Recovered {
  std::uint64_t next_step = 0;  ///< Decided steps so far, as the new generation sees it,
  Generation decided_in{};      ///< and where the last of them was decided: the newest generation of which a member knows that.
  std::vector<Recovery> members;
};
/// `members`: what each member of the new generation brought; a newcomer brings nothing. `state`: the one that all are to have. With sums of a generation, only what
/// was voted for and decided in `state.in` counts: who has anything else fetches, as many steps as it may have applied.
[[nodiscard]] Recovered recover(std::span<const Knowledge> members, Sums sums, const DecidedState& state);
/// The same for the newest state that a member knows to be decided.
[[nodiscard]] Recovered recover(std::span<const Knowledge> members, Sums sums);

}  // namespace elrun::inline v0
