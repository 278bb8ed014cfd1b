#pragma once
/// \file JobHistory: what happened on this node so far, for metrics and for people. It reads what the supervisor was told
/// and what it answered, and decides nothing.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launcher/http/exposition.hpp"
#include "launcher/report/ledger.hpp"
#include "launcher/supervise/supervisor.hpp"

namespace elrun::inline v0::launcher {

/// Why a generation ended, in as few words as a metric's label may have. Made from EndCause.
enum class CauseLabel { worker, node, growth, other };
inline constexpr std::array cause_labels{CauseLabel::worker, CauseLabel::node, CauseLabel::growth, CauseLabel::other};
[[nodiscard]] std::string_view word_of(CauseLabel label);

/// How a node's wait for a world ended.
enum class Meeting { world, refused, deadline, ended };
inline constexpr std::array meetings{Meeting::world, Meeting::refused, Meeting::deadline, Meeting::ended};
[[nodiscard]] std::string_view word_of(Meeting meeting);

struct WorkerRecord {
  enum class State { starting, running, done, failed };
  std::int64_t pid = 0;
  State state = State::starting;
  std::uint32_t rank = 0;  ///< Of a pending worker: the one that its environment names.
  bool is_job = false;     ///< It uses libelrun's Job.
};
inline constexpr std::array worker_states{WorkerRecord::State::starting, WorkerRecord::State::running, WorkerRecord::State::done,
                                          WorkerRecord::State::failed};
[[nodiscard]] std::string_view word_of(WorkerRecord::State state);
[[nodiscard]] std::string_view word_of(Supervisor::Phase phase);

inline constexpr std::array<double, 10> meeting_bounds{0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600};  ///< Seconds.
inline constexpr std::array<double, 12> recovery_bounds{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600};
inline constexpr std::array<double, 13> phase_bounds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300};
inline constexpr std::array<double, 12> step_bounds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300};

/// What this node's workers said of checkpoints.
struct CheckpointRecord {
  std::optional<Restoration> went_on_from;  ///< The newest; nothing: the job has never looked for a checkpoint.
  std::optional<Instant> safe_at;           ///< A checkpoint was saved or loaded; else the job began at step 0. Nothing: nobody said so.
  std::uint64_t saves_failed = 0;           ///< Each once for all workers of this node.
  std::optional<Failure> last_failure;      ///< Of the newest save, if that failed.
  std::uint64_t failed_step = 0;            ///< The step that it was of.
  std::uint64_t saves_left_out = 0;         ///< Because the one before was still being written. Each once for all workers of this node.
  std::uint64_t left_out_step = 0;          ///< Of the newest of them.
  std::optional<StorageWaiting> waiting{};  ///< A worker waits for the storage, or for members that do, and does not hang.
  Instant waiting_since{};                  ///< The first word of that.
  struct Parts {
    std::uint64_t written = 0, refused = 0;  ///< Votes of this node's ckptd.
    std::uint64_t bytes = 0;                 ///< Of the state, in those that were written.
    double rate = 0;                         ///< Of the newest, in bytes per second.
  } parts{};
};

/// A table of values, one for each number or text that pages and metrics show; the pages add what only the shell knows.
struct NodeRecord {
  explicit NodeRecord(Instant at) : began{at}, ledger{at} {}
  Instant began;
  Ledger ledger;
  Supervisor::Phase phase = Supervisor::Phase::joining;
  World world;                                    ///< The newest that this node took part in; generation 0: none yet
  std::map<std::uint32_t, WorkerRecord> workers;  ///< By local rank: those that are there, in `world` or on their way to the next one.
  bool connected = false;                         ///< To a coordinator.
  std::string waiting_for;                        ///< Empty when nothing is waited for.
  bool leaving = false;                           ///< A signal or a preempt notice has asked this node to end ...
  std::string leaving_because;                    ///< ... in words.
  std::string last_failure;                       ///< The newest, in words; empty: none

  std::uint64_t coordinator_changes = 0;
  std::uint64_t node_restarts = 0;                            ///< Generations that ended by this node's own workers.
  std::map<CauseLabel, std::uint64_t> worker_restarts;        ///< Workers started again.
  std::map<std::pair<int, int>, std::uint64_t> worker_exits;  ///< By exit code and signal; one of the two is 0.
  std::map<Meeting, std::uint64_t> meetings;
  Histogram meeting_seconds{meeting_bounds};
  std::map<CauseLabel, Histogram> recovery_seconds;  ///< From the first sign of a loss to the next generation's workers.
  std::map<TimeCause, Histogram> phase_seconds;      ///< Of the incidents that are over, by those causes that are phases of a recovery.

  std::uint64_t steps = 0;  ///< Decided, as this node's workers said; done again after a restart they count again.
  StepProgress last_step;   ///< The newest.
  std::optional<Instant> last_step_at;
  std::int64_t last_step_wall_ns = 0;
  Instant last_decided_at{};            ///< Of the newest step of any generation; once `steps` is above 0.
  Histogram step_seconds{step_bounds};  ///< Between two decided steps of one generation.

  CheckpointRecord checkpoints;
};

class JobHistory {
 public:
  explicit JobHistory(Instant began) : record_{began} {}
  /// One turn of the supervisor: what it was told, what it answered, and where it stands now.
  struct Turn {
    const Event& event;
    std::span<const Action> actions;
    const Supervisor& supervisor;  ///< As it is after the event.
    Instant now;
    std::int64_t wall_ns = 0;
  };
  void saw(const Turn& turn);
  [[nodiscard]] const NodeRecord& record() const { return record_; }

 private:
  void note_event(const Turn& turn);
  void note_action(const Turn& turn, const Action& action);
  void note_time(const Turn& turn);
  void note_time(const Turn& turn, const StepDecided& step);
  void note_phases();
  void note_checkpoint(const Message& message, Instant now);
  void note_wait(const WaitsForStorage& wait, Instant now);
  [[nodiscard]] bool is_newer(const std::string& acknowledgement) const;
  void began_generation(const Turn& turn, const World& world);
  void note_end(const JudgedEnd& ended, Instant now);
  void note_revoke(const Revoke& revoke, Instant now);
  void note_finish(const Finish& finish, const Event& event);

  NodeRecord record_;
  std::optional<Instant> waits_since_;  // for a world
  std::optional<Instant> lost_at_;
  std::uint64_t recovered_ = 0;                                    // incidents whose phases were noted
  std::optional<CauseLabel> end_cause_;                            // of the newest generation
  std::optional<CauseLabel> start_cause_;                          // why workers are started; none: for the first time
  std::string acknowledged_;                                       // of the newest checkpoint that was saved
  std::string loaded_;                                             // from the storage, the newest; empty: none
  std::uint64_t saves_failed_here_ = 0, saves_left_out_here_ = 0;  // of the newest generation
};

}  // namespace elrun::inline v0::launcher
