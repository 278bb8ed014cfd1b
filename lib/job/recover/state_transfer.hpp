#pragma once
/// \file StateTransfer: who sends which state to whom after a change of the world. Core: every member works out the same plan from
/// the same statuses.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/units.hpp>

#include "lib/job/declare/layout.hpp"
#include "lib/job/recover/member_status.hpp"

namespace elrun::inline v0 {

/// The plan. It is made once every member that voted for the last decided step has applied it.
struct StateTransfer {
  bool found = false;                    ///< Somebody has the state of `step`, host state too.
  bool complete = false;                 ///< And together they have all of it; else it comes from a checkpoint.
  std::vector<std::optional<Cut>> held;  ///< By rank: the shard that it brings; nothing: it gets everything.
  std::vector<bool> newcomers;           ///< By rank: it lacks host state, for its program has not come as far as the others'.
  std::uint32_t giver = 0;               ///< The first that brings a shard and host state. It tells how far the job is.
  bool moves = false;                    ///< Some member lacks something.
  bool recuts = false;                   ///< Some member brings another shard than it is to hold.
  bool beside =
      false;  ///< It travels while those that bring a shard compute the first step of this world. Those that get everything have no slots there.

  /// By rank: it runs slots in the first step of this world.
  [[nodiscard]] std::vector<bool> computes() const;
};
/// `statuses` in rank order, as they are after what `recover` found was done. `cuts`: by rank, what it is to hold. Shards of
/// one step go together whatever world they were cut for: their bits are the same.
[[nodiscard]] StateTransfer plan_state_transfer(const Layout& layout, std::span<const MemberStatus> statuses, std::uint64_t step,
                                                std::span<const Cut> cuts);

/// What it depends on whether state travels beside slots. The same on all ranks.
struct TransferFacts {
  Reduce reduce = Reduce::exact;
  std::uint64_t state_bytes = 0;     ///< What a member holds of the state,
  std::uint64_t shard_bytes = 0;     ///< and of that what is cut into shards. Where all hold all of it: nothing.
  std::uint64_t rate = 0;            ///< At so many bytes per second it travels to one member; 0: at once.
  bool is_saved_by_number = false;   ///< After so many steps there is a checkpoint, whatever the time.
  std::uint64_t slots_left = 0;      ///< Of the next step; 0: there is none.
  bool ranks_compute_apart = false;  ///< Slots need nothing of other ranks, and every rank holds all parameters, in the host's memory.
};
/// Whether `transfer` is better beside the slots of the next step than before it. Between two updates nobody changes the state. So it can travel while those who have the parameters compute, and whoever
/// gets a shard has to have it for the update alone. Who gets everything has no slots, so the others have more. These must take well below the time that the state travels, by what is expected, and no more buffers
/// for gradients than the givers had in the world before. Where nobody gets everything, shards that are cut anew go beside if they are worth a thread. Before the first decided step it is never so, for programs may still write
/// values; nor where the step begins with a checkpoint, which waits for the state; nor where a member that brings a shard lacks other parameters, with which it would compute.
[[nodiscard]] bool goes_beside(const StateTransfer& transfer, std::span<const MemberStatus> statuses, std::uint64_t step,
                               const TransferFacts& facts);

/// How long the slots of that step take a giver, as givers say.
[[nodiscard]] Duration slots_beside(const StateTransfer& transfer, std::span<const MemberStatus> statuses, std::uint64_t slots);

/// How long the exchange of `state_bytes`, which is all of the state, may last: as long as it takes at 100 MB/s where one newcomer after the other gets it. An exchange has one limit for
/// all that it moves, and newcomers of one node share its line.
[[nodiscard]] Duration time_for(const StateTransfer& transfer, std::uint64_t state_bytes);
/// How long bytes may travel to one member: as long as at 100 MB/s.
[[nodiscard]] Duration time_for(std::uint64_t bytes);

/// The members of the last generation in which all had the state that are not among these any more.
struct LostMembers {
  Generation generation{};
  std::uint32_t teller = 0;          ///< The first of these who was there: it knows whose nodes they were.
  std::vector<std::uint32_t> ranks;  ///< As they were there.
};
[[nodiscard]] LostMembers lost_members(std::span<const MemberStatus> statuses);

/// The nodes of one generation, by rank.
struct PreviousNodes {
  Generation generation{};
  std::vector<std::string> names;
};

/// Why all go back, where some member has a state, and the transfer is not complete: a sentence. Nothing: nobody had one, or all parts are there. `lost`: the `lost_members`
/// of the same statuses. `in_memory`: the step of the in-memory checkpoint to which they go; nothing: there is none. `known`: the nodes of the generation in which this member was last. It says where the lost ones were if they were in that one.
[[nodiscard]] std::optional<std::string> lost_state_line(std::span<const MemberStatus> statuses, std::uint64_t step,
                                                         const StateTransfer& transfer, const LostMembers& lost,
                                                         const PreviousNodes& known = {}, std::optional<std::uint64_t> in_memory = {});

}  // namespace elrun::inline v0
