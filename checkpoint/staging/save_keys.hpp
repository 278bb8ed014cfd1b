#pragma once
/// \file Shell: what anybody but a save's own writers says of it in the job's store, and the removal of what saves have left there.
///
/// The idea: keys of a save are the job's and outlive its generation, and its leader may be another process, or on another node, at the next save. So who puts a key there notes the save
/// in a list that is a key itself, and the leader of each later save removes what the saves before it have left.

#include <cstdint>
#include <functional>
#include <optional>

#include <elrun/result.hpp>
#include <elrun/store.hpp>
#include <elrun/units.hpp>

#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/staging/slot_record.hpp"

namespace elrun::inline v0 {

[[nodiscard]] NotedSave noted_save(const SlotRecord& record);

/// Tells the writers of the other ranks that the part of `rank` will not come.
Result<void> tell_gone(Store& store, const NotedSave& save, std::uint32_t rank, const Failure& why, Deadline deadline);

/// The same of a rank that died when it had promised to begin a save, and had not begun: of whichever save of that generation waits for it.
Result<void> tell_broken_promise(Store& store, const SlotOwner& owner, Deadline deadline);
/// Why a part of a save of this generation was never begun, if that is so.
[[nodiscard]] std::optional<Failure> broken_promise(Store& store, const Generation& generation, Deadline deadline);

/// How a save ended, as its leader told the store; nothing where it did not (yet). For a worker whose ckptd died.
[[nodiscard]] std::optional<SaveOutcome> told_outcome(Store& store, const NotedSave& save, const std::function<Deadline()>& deadline);

/// The store has keys of this save, or will have in a moment.
Result<void> note_save(Store& store, const NotedSave& save, Deadline deadline);
/// Removes the keys of the noted saves that `mine`, which is over, has replaced: nobody asks for them any more. It says nothing of those that the store does not remove now: the next save does.
/// `soon` is the deadline of one call.
void sweep_saves(Store& store, const NotedSave& mine, const std::function<Deadline()>& soon);

}  // namespace elrun::inline v0
