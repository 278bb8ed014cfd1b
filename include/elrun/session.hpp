#pragma once
/// \file Session: a worker's hold on its place in the world, under elrun, in an operator's environment, or alone.

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <elrun/export.hpp>
#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/store.hpp>

namespace elrun::inline v0 {

/// Where this worker stands.
struct Place {
  Membership membership{};
  LocalRank local_rank{};
  std::uint32_t local_world = 1;  ///< Workers of this node.
  RunId run{};
  NodeId node{};
  std::string address;              ///< Of this node, as its peers reach it: where listeners bind.
  std::array<std::byte, 32> key{};  ///< The generation's secret, never to be printed; peers prove it to each other before the first frame.
  std::uint32_t restart_count = 0;  ///< Generations of this job before this one that ended by a failure.
  bool elastic = false;             ///< Under elrun: a failure starts a new generation. Otherwise it ends the program.
};

/// What the agent may do with a worker whose generation is over.
enum class WorkerKind : std::uint8_t {
  program,  ///< It is asked to end, then started again.
  job,      ///< It is killed and started again; its restarts have a budget, and one after newly decided steps is free.
  /// A job whose process goes on: it calls `next_generation`, or is killed. Successors of the dead are started while the others go on: there `open`
  /// succeeds with a place in a generation that is over for this process. So where `ProcessGroup::join` fails with `generation_over`, in a process
  /// that has just begun too, the program calls `next_generation` and joins again.
  staying,
};

/// Where the time went since a worker's last word of a step, as it measured it. All are 0 where it did not.
struct StepTimes {
  Duration step{};     ///< From the step's beginning to its decision.
  Duration waiting{};  ///< The part of `step` that would be saved if all ranks computed equally long.
  Duration saves{};    ///< Before `step`: saves that training waited for.
  Duration restore{};  ///< Before that, for a generation's first step: until all members had the state.
  Duration connect{};  ///< Before that: until they were connected.
  Duration
      behind{};  ///< From when the second-to-last rank had computed the step to when the last one had. 0: not known, or a world of one.
  std::uint32_t last_rank = 0;  ///< The last rank, if `behind` is not 0.
  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

/// What a worker says of a step that was decided.
struct StepProgress {
  StepNumber decided;              ///< Steps that were decided so far; a job that goes back to a checkpoint counts from there.
  std::uint64_t steps = 0;         ///< That the job will take in all; 0: not known.
  std::optional<float> loss = {};  ///< Of that step; nothing: not known.
  StepTimes times = {};
};

/// What stands for the directory of an in-memory checkpoint.
inline constexpr std::string_view in_memory_checkpoint = "memory";

/// The checkpoint from which all members of a generation continue, when none of them has the state in memory.
struct Restoration {
  std::string checkpoint;          ///< Its directory, or `in_memory_checkpoint`; empty: there is none, and the job begins at step 0.
  std::uint64_t step = 0;          ///< Steps that are done: the number of the one that comes next.
  std::uint64_t steps_again = 0;   ///< Steps that were decided before, as far as agents know, and are done again.
  std::string why;                 ///< Why this checkpoint, a clause for people: "the newest checkpoint".
  std::vector<std::string> notes;  ///< What was passed over and why, a line each.
  friend bool operator==(const Restoration&, const Restoration&) = default;
};

/// A worker waits for the storage of its checkpoints, or for members that do.
struct StorageWaiting {
  std::string directory;  ///< Of the checkpoints.
  std::string why;        ///< Rank, file, operation or cause, and what to look at. Empty: no trouble is known to this worker.
  friend bool operator==(const StorageWaiting&, const StorageWaiting&) = default;
};

/// A rank that computes more slowly than the others of its generation, as the workers measured it.
struct SlowRank {
  std::uint32_t rank = 0;
  std::string node;         ///< Where it is,
  std::string device;       ///< and on what it computes: "cpu", "cuda:1".
  std::uint64_t step = 0;   ///< The newest of the steps in which it was slow, ...
  std::uint32_t steps = 0;  ///< ... which are so many in a row.
  float times = 0;          ///< So many times as long as the median of the other ranks a slot took it, in that step.
  Duration lost{};          ///< So much longer it computed in all of these steps.
  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

/// A worker failed by itself in a generation that went on from a checkpoint, and the job has not come further since.
struct FailureAfter {
  std::string checkpoint;        ///< Its directory.
  std::uint64_t generation = 0;  ///< Its number.
  std::uint64_t step = 0;        ///< Steps that were done by then, as far as the worker's agent knew.
  std::string how;               ///< "exit code 3"
  friend bool operator==(const FailureAfter&, const FailureAfter&) = default;
};

/// Opened once per process. Thread-safe but for the constructor, the destructor and `next_generation`; the destructor
/// waits for nobody.
class ELRUN_API Session {
 public:
  /// Called once, on the session's thread, when the generation is over (a member was lost, the agent went away).
  /// Must not block. Called at once if it is over already. Forgotten by `next_generation`.
  using OnOver = std::function<void(const Failure&)>;

  virtual ~Session() = default;
  [[nodiscard]] virtual const Place& place() const = 0;
  [[nodiscard]] virtual Store& store() = 0;
  virtual void on_generation_over(OnOver call) = 0;
  /// Says that a step was decided: after it the next failure costs no restart, and it shows in the launcher's log and status. Never waits.
  virtual void progress(const StepProgress& progress) = 0;
  /// Says where time went after the last step, before `finished`. Never waits.
  virtual void ended(const StepProgress& /*last*/) {}
  /// Says that all members decided that the job is over with success; from then on the verdict is success, whatever
  /// dies. Returns when the agent has it.
  virtual Result<void> finished(Deadline deadline) = 0;
  /// Says why this worker cannot go on in its generation, for nobody else may know: a peer was lost (`peer_lost`), cannot be reached (`unreachable`, with
  /// `peer`) or did not answer in time, or something failed here (a call of NCCL). Does nothing for `generation_over`, which the agent said. Never waits.
  virtual void cannot_go_on(const Failure&) {}

  /// Of a generation that is over, in a worker that stays: waits for this process's place in the next one. A process that was started beside a
  /// generation calls it before it joins one (`WorkerKind::staying`). After success
  /// `place()` and `store()` are of that one. Until `agreed_by` for the agent to say, too, that the generation is over;
  /// from then on as long as the agent lives, for it ends this process when there is no next one. `refused` without elrun.
  virtual Result<void> next_generation(Deadline agreed_by);
  /// How long the program may need from the end of a generation to its call of `next_generation`; after a while longer
  /// it is killed. Never waits.
  virtual void returns_within(Duration) {}

  /// Whether this worker's node was asked to leave. What would be lost with it is to be saved now; there is less than the
  /// time between the launcher's signal and SIGKILL. Never waits.
  [[nodiscard]] virtual bool is_leaving() const { return false; }
  /// Says that all is saved: the node leaves. Never waits.
  virtual void ready_to_leave() {}

  /// What the workers of this node have told their agent so far, in this generation and before it.
  struct Remembered {
    std::uint64_t decided = 0;  ///< The most steps that were decided.
    std::string checkpoint;     ///< What `checkpoint_saved` was told last; empty: nothing.
    /// Of workers of this node, oldest first.
    std::vector<FailureAfter> failures{};
  };
  /// As of the newest place that the agent told. Nothing without elrun, and under an elrun of an earlier version.
  [[nodiscard]] virtual Remembered remembered() const { return {}; }
  /// Says that a checkpoint was acknowledged, so that its loss is noticed even where the storage is gone as a whole. The agent keeps
  /// the newest text, of at most 16 KiB, as long as it lives. Never waits.
  virtual void checkpoint_saved(const std::string& /*acknowledgement*/) {}
  /// Says from where this generation goes on. The agent shows it, and remembers how workers fail after it. Never waits.
  virtual void went_on_from(const Restoration&) {}
  /// Says that a checkpoint of this step could not be saved: the `count`th time in this generation, by all members' count. The agent shows it. Never waits.
  virtual void save_failed(StepNumber /*step*/, std::uint64_t /*count*/, const Failure& /*why*/) {}
  /// Says that no checkpoint of this step was saved, because the one before it was still being written; counted as above. The agent shows it. Never waits.
  virtual void save_left_out(StepNumber /*step*/, std::uint64_t /*count*/) {}
  /// Says that this worker waits for the storage: it does not hang, and the agent shows for what it waits. To be said again while it waits. Never waits.
  virtual void waits_for_storage(const StorageWaiting&) {}
  /// Says that a rank of this generation was found to be slow. All workers may say the same. The agent shows it. Never waits.
  virtual void rank_is_slow(const SlowRank&) {}

  /// Which of the three it is follows from the environment: ELRUN_SOCKET (under elrun), else RANK, WORLD_SIZE,
  /// MASTER_ADDR and MASTER_PORT (an operator's or a scheduler's job; rank 0 hosts the store), else alone.
  /// Waits until the session is up, `deadline` at most, and says for whom. The generation of that place may be over: see `WorkerKind::staying`. Fails with `invalid_argument` when the environment
  /// contradicts itself, `unreachable` or `deadline_passed` when nobody answers, `refused` when the answer is no,
  /// `exhausted` when the system gives it no descriptor or no thread.
  static Result<std::unique_ptr<Session>> open(WorkerKind kind, Deadline deadline);
};

}  // namespace elrun::inline v0
