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
  Generation saved_in{};    ///< Number 0: not known.
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

// --- the whole decision ---

/// The job has failed after this checkpoint the same way twice, and reached no new step (suspects.hpp).
struct Suspect {
  CheckpointId id;
  std::string says;  ///< For people: how it failed, and who says so.
  friend bool operator==(const Suspect&, const Suspect&) = default;
};

/// A checkpoint that a start has looked into.
struct LookedInto {
  enum class As : std::uint8_t {
    whole,       ///< Passes all checks but those of its data blocks.
    damaged,     ///< Is to be marked.
    unreadable,  ///< Twice. It may be whole.
    removed,     ///< By its owner, while this start looked.
  };
  CheckpointId id;
  As as = As::whole;
  std::string why{};  ///< Not whole: for people.
  std::uint32_t manifest_crc = 0;
};

/// A checkpoint that this process could not load.
struct Rejected {
  CheckpointId id;
  std::string why{};  ///< What was seen, for people.
};

/// All that the decision of a start follows from.
struct Findings {
  RootView view;                         ///< The storage, its fences, and who knows of which checkpoint.
  std::vector<LookedInto> looked{};      ///< Checkpoints of `view.found`.
  std::vector<Rejected> rejected{};      ///< That this process could not load.
  std::vector<Suspect> suspects{};       ///< By the job's agents.
  std::uint64_t decided = 0;             ///< The most steps that the job's agents have seen decided.
  std::optional<LossName> begin_anew{};  ///< What a person gives up.
};

/// This checkpoint has to be looked into first.
struct LookInto {
  CheckpointId id;
};

/// The start goes on.
struct Resumption {
  std::optional<CheckpointId> from{};    ///< Nothing: begin at step 0.
  std::uint32_t manifest_crc = 0;        ///< Of `from`.
  std::string why{};                     ///< Why this one, a clause for people: "the newest checkpoint".
  std::uint64_t steps_again = 0;         ///< Decided before, and in no checkpoint that the job goes on from.
  std::vector<CheckpointId> inherits{};  ///< By the fence of this start, oldest first.
  std::vector<LookedInto> to_mark{};     ///< Found damaged.
  std::vector<GivenUp> gives_up{};       ///< For its fence: what was given up before, and now.
  std::vector<std::string> notes{};      ///< What was passed over and why, and whatever else people should know, a line each.
};

/// The one place where it is decided from which checkpoint a job goes on, or why it has to stop. From the newest of the timeline back:
///
/// * what cannot be read fails the start with `io`: it may be whole, and only a person can know whether its storage comes back;
/// * what is quarantined, could not be loaded or is damaged is passed over, with a note; what its owner removed, without;
/// * a suspect is passed over where an older one is whole, and else gone on from; both with a note;
/// * the first other one is the choice;
/// * then `resume` has the last word: what was acknowledged and is missing, and a root of which none can be used, stop the job.
[[nodiscard]] std::variant<LookInto, Resumption, Failure> decide(const Findings& findings);

/// Of a checkpoint that cannot be read (`io`), with what a person can do. `root`: its directory; `why`: what was seen.
[[nodiscard]] Failure cannot_be_read(const std::string& root, const CheckpointId& id, std::string_view why);

/// What a fence inherits of the timeline up to `newest`: not what is quarantined, nor at its end what cannot be read and nobody knows of, which
/// may be a save's leftover: the next start would miss it.
[[nodiscard]] std::vector<CheckpointId> inheritance(const RootView& view, std::optional<CheckpointId> newest);

/// For a start that has the state in memory and goes back to nothing: it saves on, whatever the root has lost. A failure when
/// the root is gone as a whole, so that nothing is written to what is mounted there by mistake.
[[nodiscard]] std::variant<GoOn, Failure> save_on(const RootView& view);

}  // namespace elrun::inline v0
