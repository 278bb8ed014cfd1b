#pragma once
/// \file Core: whether a start may go on from what it found. Never from zero, never silently back: a checkpoint that was
/// acknowledged and cannot be found stops the start, and names both sides, until a person gives up the newest one by its name.
///
/// Witnesses say what was acknowledged: the acknowledgements beside the fences, what the highest fence inherited, the parent that a
/// manifest names; and outside of the storage the job's store and its agents, which live on when the storage is gone. Only the newest
/// has to be there, for retention removes older ones. What a later fence of the same root has judged is settled.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <elrun/failure.hpp>

#include "checkpoint/commit/fence.hpp"

namespace elrun::inline v0 {

/// Says that a checkpoint was committed and acknowledged.
struct Witness {
  CheckpointId id;
  std::string root{};       ///< Identity of its root; empty: not known.
  std::string says{};       ///< For people: who says so, and since when.
  bool is_outside = false;  ///< Of the storage: the job's store, or an agent.
  friend bool operator==(const Witness&, const Witness&) = default;
};

[[nodiscard]] Witness witness(const Acknowledgement& record, const std::string& who, bool is_outside);

/// A checkpoint root as a start finds it.
struct RootView {
  std::string where;   ///< For people.
  std::string root{};  ///< Its identity; empty: not known.
  std::vector<Found> found{};
  std::optional<FenceRecord> highest{};  ///< The highest published before this start.
  std::vector<Witness> witnesses{};
  std::string hollow{};          ///< What must have been there and is gone, a clause for people. Empty: nothing is.
  FenceNumber newest_fence = 0;  ///< The highest fence that anything found names. A `hollow` root is given up as step 0 of it.
};

/// What was acknowledged and is not there, newest first. Empty: nothing is missed.
[[nodiscard]] std::vector<Witness> missing(const RootView& view);

/// The start goes on.
struct GoOn {
  std::vector<GivenUp> gives_up{};   ///< For its fence: what was given up before, and now.
  std::vector<std::string> notes{};  ///< For people, a line each.
};
/// `usable`: the newest checkpoint of the timeline that passes its checks; nothing when there is none. `passed_over`: why newer ones
/// did not, a line each. `begin_anew`: what a person gives up. A step without a fence is enough where the highest fence shows that nothing
/// was given up at that step before. A failure is what a person must change, and says which option gives up what is lost.
[[nodiscard]] std::variant<GoOn, Failure> resume(const RootView& view, std::optional<CheckpointId> usable,
                                                 const std::vector<std::string>& passed_over, std::optional<LossName> begin_anew);

/// For a start that has the state in memory and goes back to nothing: it saves on, whatever the root has lost. A failure when
/// the root is gone as a whole, so that nothing is written to what is mounted there by mistake.
[[nodiscard]] std::variant<GoOn, Failure> save_on(const RootView& view);

}  // namespace elrun::inline v0
