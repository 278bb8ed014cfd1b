#pragma once
/// \file Saves and restores of a whole world: the Checkpointer's calls in order, its values carried between ranks.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <elrun/job.hpp>
#include <elrun/plan.hpp>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/resume.hpp"
#include "checkpoint/commit/suspects.hpp"
#include "checkpoint/staging/slot_record.hpp"
#include "lib/job/save/host_fragments.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// All calls on all ranks, in the same order. Results are the same on all ranks. The leader is rank 0.
class Saves {
 public:
  /// `files`, `clock`, `log`, `session` and `world` outlive it. `saved` and `loaded`: this rank's part of the state.
  Saves(Files& files, const Clock& clock, const Log& log, Session& session, JobWorld& world, CheckpointOptions options, Saver saver,
        HostFragments saved, HostFragments loaded, unsigned threads);

  struct Loaded {
    Restored restored;
    std::optional<std::vector<Aux>> host_state;  ///< Nothing when the root has no checkpoint.
  };
  /// Loads the checkpoint that `decide` chooses. `not_found` when one was acknowledged and is missing: resume.hpp. `io` when one cannot be read that it would choose:
  /// then it is to be called again later. So is what fails as `may_be_seen_yet` says: a rank sees checkpoints that the leader does not see (sights.hpp).
  Result<Loaded> restore();

  /// What is known of the newest checkpoint.
  struct Newest {
    std::optional<NewestCheckpoint> acknowledged;  ///< As the job's store and its agents say. It need not be on storage.
    /// From which `restore` would go on now, as far as the leader sees; nothing where there is none. Fails as `restore` does.
    Result<std::optional<NewestCheckpoint>> usable;
  };
  /// Whose storage is looked at. Of a difference between the ranks' only a look of all of them tells.
  enum class Lookers : std::uint8_t { all_ranks, leader };
  /// Writes nothing, and claims no fence. A failure is one of the world.
  Result<Newest> newest(Lookers lookers = Lookers::all_ranks);
  /// Commits a checkpoint; the first call claims the root where `restore` has not. `refused` says that a newer job owns the root; after any other failure the world can go on.
  /// `removes_old`: those beyond `keep` go, and what dead saves left.
  Result<void> save(std::uint64_t step, std::span<const Aux> aux, const std::function<Result<void>()>& still_owner,
                    bool removes_old = true);

  /// For a save after `step` steps that another process makes under this fence (staging.hpp): claims one where that is still to be done.
  Result<void> claim(std::uint64_t step);
  [[nodiscard]] const HostFragments& saved() const { return saved_; }
  /// On this rank, after `claim`: all that its part takes, but for where its fragments lie.
  [[nodiscard]] SlotRecord slot_record(std::uint64_t step, std::vector<Aux> aux) const;
  /// The other process has committed it, as its acknowledgement says.
  void committed_elsewhere(const std::string& acknowledgement);
  [[nodiscard]] bool has_claimed() const { return claimed_; }
  /// What the leader itself sees of this job's fence. Fails with `refused` where another job owns the root. Where the fence is gone the next save claims another one.
  Result<void> look_at_fence();
  /// Nothing more is saved under this fence: the next save claims another one. On all ranks.
  void lose_claim() { claimed_ = false; }

 private:
  template <class T>
  Result<T> leaders(const std::function<Result<T>()>& call, Result<T> (*decode)(ByteSpan));
  /// The leader's start; all ranks look into shards meanwhile, as often as it asks.
  Result<Start> start_together(const KnownElsewhere& heard);
  Result<std::vector<ShardFindings>> ask_for_shards(const ShardQuestion& check);
  /// Before a start: all ranks open the root, and the leader hears what agents remember and ranks see. Only its answer is whole.
  Result<KnownElsewhere> look_around();
  Result<KnownElsewhere> ask_around(const RootSight& sees);
  void hear(KnownElsewhere& heard, std::string_view text, const std::string& who);
  void hear(std::vector<FailedAfter>& heard, const FailureAfter& failure, const std::string& node) const;
  void tell_store(const std::string& acknowledgement) const;

  const Clock& clock_;
  const Log& log_;
  Session& session_;
  JobWorld& world_;
  CheckpointOptions options_;
  Saver saver_;
  std::string plan_;  // its hash
  Checkpointer checkpointer_;
  FenceNumber fence_ = 0;  // the leader's
  HostFragments saved_, loaded_;
  const unsigned threads_;  // that read and write a checkpoint
  unsigned looks_ = 0;      // of the ranks
  bool claimed_ = false;
  bool has_told_of_another_ = false;  // directory: one line is enough
};

}  // namespace elrun::inline v0
