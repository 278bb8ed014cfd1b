#pragma once
/// \file JobSaves: when a job saves, what it does when a save fails, and how often it tries the final one. Saves (saves.hpp) is one save.
///
/// All calls are made on all ranks in the same order, by the job's thread, and come to the same on all. A world that ends in a call leaves it
/// by `Revoked` (revoked.hpp). A failed save is logged and training goes on; the final one is tried again for `CheckpointOptions::final_wait`,
/// because nothing else holds the state, and a start waits as long for a storage that does not answer; a newer job on the same root ends this one at once. While a start or a save
/// waits for the storage, the agent hears that it does not hang. A save that fails when nothing was saved for
/// `CheckpointOptions::max_age` ends the job by `CheckpointTooOld`. The agent hears of each failed save. With `CheckpointOptions::async` a save between two steps
/// is begun here, and goes on elsewhere (async_saves.hpp); one that comes while another is written is left out.

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/job.hpp>

#include "checkpoint/format/records.hpp"
#include "lib/job/departure.hpp"
#include "lib/job/job_host.hpp"
#include "lib/job/program_timeout.hpp"
#include "lib/job/save/async_saves.hpp"
#include "lib/job/save/save_interval.hpp"
#include "lib/job/save/save_record.hpp"
#include "lib/job/save/saves.hpp"
#include "lib/job/save/storage_retry.hpp"
#include "lib/job/save/storage_wait_report.hpp"

namespace elrun::inline v0 {

/// More methods than 25: one for each moment of a job at which saves matter, and one for each way in which a save goes on. What is known of saves is in SaveRecord, when
/// one is due in SaveInterval, and the wait for a storage in StorageRetry.
class JobSaves {
 public:
  /// All outlive it.
  JobSaves(const JobHost& host, JobWorld& world, ProgramTimeout& program_timeout, Departure& departure)
      : host_{host},
        world_{world},
        program_timeout_{program_timeout},
        departure_{departure},
        async_{host, world},
        retry_{host, world, departure},
        record_{host.clock, host.session, world} {}

  /// A relative directory is one of this moment's working directory, whatever the program does later: `elrun ckptd` has another one. Where the program runs again in its process, it is
  /// one of `working_directory` of the run before, for the others' have not moved, and neither has a replacement's; empty: there was none.
  void configure(const CheckpointOptions& options);
  [[nodiscard]] const Path& working_directory() const { return working_directory_; }
  void set_working_directory(Path directory) { working_directory_ = std::move(directory); }
  [[nodiscard]] bool has_directory() const { return !options_.directory.empty(); }
  /// Its absolute path; empty where there is none.
  [[nodiscard]] const std::string& directory() const { return options_.directory; }

  /// What follows `open` in this generation.
  enum class Then { restore, saves };
  /// Where there is a directory: what this member writes and reads in this generation. `host_bytes`: of host state, as far as it is known.
  void open(Saver saver, HostFragments saved, HostFragments loaded, std::uint64_t host_bytes, Then then);
  /// Loads the checkpoint that the job goes on from and returns its host state; nothing where there is none. The agent hears which one it is.
  /// `known_step`: decided steps of which members know. `lost`: what became of their state; empty: nobody had one.
  [[nodiscard]] std::optional<std::vector<Aux>> restore(std::uint64_t known_step = 0, const std::string& lost = {});
  /// The job goes on from the in-memory checkpoint of `step`. The agent hears that. `known_step`, `lost`: as of `restore`.
  void went_on_from_memory(std::uint64_t step, std::uint64_t known_step, const std::string& lost);
  /// What the newest `restore` came to.
  [[nodiscard]] const Restored& restored() const { return restored_; }
  /// The state is from elsewhere, or from nothing.
  void forget_restored() { restored_ = {.why = "there is no checkpoint directory"}; }
  /// The newest step that is on storage, as far as this member knows.
  [[nodiscard]] std::uint64_t saved_step() const { return record_.step(); }
  void set_saved_step(std::uint64_t step) { record_.set_step(step); }
  /// Of the newest checkpoint of this job that this node's agent was told of, as of the newest place; 0: of none. `plan`: its hash.
  [[nodiscard]] std::uint64_t remembered_step(std::string_view plan) const;
  /// What a storage holds.
  struct Looked {
    bool has_answered = false;
    std::optional<NewestCheckpoint> newest{};  ///< From which `restore` would go on now; nothing: there is none, or that cannot be told.
  };
  /// For members that keep their state unless others have saved a newer one. Where it cannot be told what is on the storage the leader warns why. Where the storage does not answer although a
  /// checkpoint was acknowledged that is newer (`is_newer`, the same on all ranks), this ends as `restore` does. Waits for saves of workers before these, and writes nothing.
  [[nodiscard]] Looked newest(const Saver& saver, const std::function<bool(const NewestCheckpoint&)>& is_newer);
  /// The same where a newer one is not likely, and a loss is not to wait for a storage that may have gone with it: the leader alone looks, for `final_wait` and 5 s at most. Where that gets no answer
  /// the leader warns of it, and they keep their state; but where a newer checkpoint was acknowledged (`is_newer`), this goes on as `newest`. A rank that has a state (`has_state`) knows of all saves
  /// that were begun on its node, and waits for none of them.
  [[nodiscard]] Looked newest_soon(const Saver& saver, const std::function<bool(const NewestCheckpoint&)>& is_newer, bool has_state);
  /// How long ago that was, by this member's clock; without a checkpoint since the job began.
  [[nodiscard]] Duration unsaved_for() const { return record_.age(); }
  /// This member is new and has the state from one that knows that: where a new member leads, time goes on counting.
  void hear_unsaved_for(Duration time);
  /// In the process of a run of the program before this one.
  void continue_from(const JobSaves& before);

  /// At this rank's vote for a step, with which `steps` are decided: whether the leader, if this rank is it, wants a save after it.
  [[nodiscard]] bool asks_for_save(std::uint64_t steps);
  /// What the leader's vote said, heard with those of all others: of the border after this step, and of no other.
  void set_asked_for(bool asked) { is_asked_for_ = asked; }
  /// After `step` decided steps: it is time for a checkpoint, or a member leaves, and this step is not on storage.
  [[nodiscard]] bool is_due(std::uint64_t step) const;
  /// The same by the number of the step alone, whether it is on storage or not: known to all ranks.
  [[nodiscard]] bool is_due_by_number(std::uint64_t step) const;
  void save(std::uint64_t step, const std::vector<Aux>& host_state);
  /// Between two steps, on this rank: takes note of a save that went on meanwhile and is over.
  void hear();
  /// Before parameters or moments change: a copy of them may be under way. Any time, also where there is none.
  void finish_copy() { async_.finish_copy(); }
  /// The job waited for other nodes for so long: no work is lost with that time, so `max_age` does not count it.
  void waited(Duration time) { record_.set_safe_at(record_.safe_at() + time); }
  /// Does nothing where the last step is on storage.
  void save_at_the_end(std::uint64_t step, const std::vector<Aux>& host_state);

 private:
  /// What came of a look at the storage.
  struct Told {
    Result<void> looked{};
    std::optional<NewestCheckpoint> usable{};  ///< As in Looked.
    bool is_newer = false;                     ///< A newer one was acknowledged.
  };
  [[nodiscard]] Told look_for_newest(const Saver& saver, const std::function<bool(const NewestCheckpoint&)>& is_newer,
                                     Saves::Lookers lookers, Duration wait, StorageWaitReporter& reporter, std::optional<Instant> since);
  /// What all ranks know of their saves.
  AsyncSaves::Agreed heed(const AsyncSaves::Agreed& agreed);
  void save_blocking(std::uint64_t step, const std::vector<Aux>& host_state);
  /// True: this step needs no save that blocks.
  bool save_aside(std::uint64_t step, const std::vector<Aux>& host_state);
  void take_note(const SaveOutcome& outcome);
  enum class Next { training, save_that_blocks };
  void act_on(const AsyncSaves::Agreed& agreed, Next next);
  /// ckptd has said this of the fence.
  void look_at_fence(const Failure& said);
  void wait_for_async(Duration time, std::uint64_t step);
  void wait_for_async_at_the_end(std::uint64_t step);
  std::optional<Failure> try_to_save(std::uint64_t step, const std::vector<Aux>& host_state);
  [[nodiscard]] StorageWaitReporter::Terms wait_terms(Duration wait) const;

  const JobHost& host_;
  JobWorld& world_;
  ProgramTimeout& program_timeout_;
  Departure& departure_;
  CheckpointOptions options_;
  Path working_directory_;  // in which a relative directory was configured first in this process; empty: none was
  std::optional<Saves> saves_;
  AsyncSaves async_;
  SaveInterval interval_;
  StorageRetry retry_;
  SaveRecord record_;
  bool is_asked_for_ = false;
  bool is_cut_off_ = false;           // a ckptd that does not answer: what it may still write is under an older fence
  bool coordinator_is_away_ = false;  // it did not answer when it was last asked
  Restored restored_{.why = "there is no checkpoint directory"};
};

}  // namespace elrun::inline v0
