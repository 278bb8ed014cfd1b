#pragma once
/// \file MemberStatus: what a member brings into a new generation. Core: a value and its encoding. In *settle* every member sends its
/// own to all others.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include <elrun/device.hpp>

#include "lib/base/bytes.hpp"
#include "lib/job/commit/commit.hpp"
#include "lib/job/commit/decision.hpp"
#include "lib/job/commit/update_values.hpp"
#include "lib/job/declare/layout.hpp"

namespace elrun::inline v0 {

/// The shard that a member holds, and during a recut that could not be finished also the next one. A recut is finished by all or by none: who has all of its new shard keeps both
/// until it hears that all have theirs. Where the generation ends before that, *settle* finds out whether any member heard it.
struct HeldCut {
  Cut cut{};
  Generation recut_in{};  ///< In which the last recut was that this member knows to be finished by all.
  Cut next{};             ///< All of that is there, too,
  Generation next_in{};   ///< since the recut of that generation; number 0: it is not.
  friend bool operator==(const HeldCut&, const HeldCut&) = default;
};

/// What a member holds in memory of an in-memory checkpoint: a shard of the state of `step` decided steps, and host state.
struct HeldCheckpoint {
  std::uint64_t step = 0;
  Generation taken_in{};  ///< With the step it says which checkpoint this is a part of.
  Cut cut{};
  friend bool operator==(const HeldCheckpoint&, const HeldCheckpoint&) = default;
};
constexpr std::size_t checkpoints_held_max = 2;  ///< The newest that all have, and one that is being made.

/// Where the two copies of mirrored state are, as a member knows it. Of other state it says the same of the workers, and nobody looks at it.
enum class Copies : std::uint8_t {
  never_apart,  ///< All workers have been on one node since this member came.
  apart,        ///< On different nodes.
  together,     ///< On one node, and they were apart before.
};

/// A member's place in the last generation in which all had the state. World 0: it has been in none.
struct PlaceBefore {
  Generation generation{};
  std::uint32_t rank = 0, world = 0;
  friend bool operator==(const PlaceBefore&, const PlaceBefore&) = default;
};

/// A member that knows of no checkpoint has saved this step last.
constexpr std::uint64_t never_saved = ~std::uint64_t{0};

/// What one member brings. A newcomer has no state. More than 15 fields: one for each fact of it that is decided with.
struct MemberStatus {
  bool has_state = false;      ///< Parameters and moments of `knowledge.applied` steps,
  bool has_host_state = true;  ///< and host state: who got the first from others has the second once all come to next_step().
  bool missed_none = false;    ///< It had a place in each generation since all had that state, by their numbers: nobody trained without it,
  bool coordinator_changed = false;  ///< unless the coordinator before began one of the same number without it.
  bool has_begun = false;            ///< Its program has made or got initial values, or got parts of them: it cannot begin where it is.
  bool is_past_restore = false;      ///< Its program has left restore(): it may be anywhere in its loop.
  bool keeps_position = false;       ///< Its program runs again up to restore(), with the state and the place in the loop of its last run.
  Knowledge knowledge{};
  Decision decision{};          ///< The last one that this member made or heard of; `count` says whether it is that of `knowledge.decided`.
  UpdateValues voted_update{};  ///< For which it voted last, in step `knowledge.voted - 1`; not known where it did not vote for that step.
  std::uint64_t saved_step = 0;             ///< The newest that is on storage, as it knows,
  Duration unsaved_for{0};                  ///< and how long ago it got there.
  Duration slot{0};                         ///< How long its last slot took; 0: it had none.
  std::uint64_t remembered_step = 0;        ///< Of the newest checkpoint that its agent was told of; 0: of none.
  std::uint64_t remembered_decided = 0;     ///< The most steps that its agent has seen decided.
  HeldCut held{};                           ///< Its shard of what is sharded. Of replicated state that is all.
  std::vector<HeldCheckpoint> checkpoints;  ///< In its memory.
  bool whole_parameters = true;             ///< Parameters outside of its shard are of the same step, too.
  std::string node;                         ///< Where it runs,
  Device device{};                          ///< and computes.
  PlaceBefore before{};
  Copies copies = Copies::never_apart;  ///< In the last generation in which all had the state.
  std::uint64_t evaluations = 0;        ///< Decided since its last step was applied,
  ByteVector evaluation{};              ///< and what the last of them came to; empty: there is none.
  friend bool operator==(const MemberStatus&, const MemberStatus&) = default;
};
[[nodiscard]] ByteVector encode(const MemberStatus& status);
[[nodiscard]] Result<MemberStatus> decode_member_status(ByteSpan bytes);

}  // namespace elrun::inline v0
