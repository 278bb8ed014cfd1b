#pragma once
/// \file Shell: the save of one rank's sealed slot, in the process that writes it (`elrun ckptd`). The order of writes is the Checkpointer's; here is who
/// waits for whom: the writers of all ranks meet in the job's store, so that neither their workers nor the generation need to live.

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <elrun/store.hpp>
#include <elrun/units.hpp>

#include "checkpoint/commit/messages.hpp"
#include "checkpoint/commit/root.hpp"
#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/storage/shard_writer.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0 {

/// What a save takes from its process. All outlive it.
struct SlotSaveHost {
  Files& files;
  const Clock& clock;
  const Log& log;
  Store& store;                         ///< The job's. Calls that fail are made again until the deadline.
  std::function<void(Duration)> sleep;  ///< Between two such calls.
  std::function<std::optional<Failure>()>
      cancel;  ///< Why the save is given up, asked before each wait and each step of the commit; nothing: it goes on.
  std::function<Instant()> deadline;                            ///< Of the whole save; it may come nearer meanwhile.
  std::function<void(const std::string&)> acknowledged{};       ///< The commit is acknowledged: before anything else is done.
  std::function<void(const PartVote&, Duration took)> voted{};  ///< This rank's part is written, or could not be.
  ShardWriting writing{};                                       ///< How its part is written.
  unsigned operations_at_once = storage_operations_at_once;     ///< Of the leader, before its COMMIT.
};

/// Writes the part of `record.rank`; the leader (rank 0) commits once all ranks have voted. A save that failed is tried again under a new name, up to
/// `save_tries_max` times, where the next moment may be a better one. Then the leader removes what older saves have left in the store (save_keys.hpp). Never fails: the outcome says why not.
[[nodiscard]] SaveOutcome save_slot(const SlotView& slot, const SlotRecord& record, const SlotSaveHost& host);

}  // namespace elrun::inline v0
