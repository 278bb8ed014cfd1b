#pragma once
/// \file Shell: one run of the job, undisturbed or by a plan: asks the Rehearsal what is due, does it, and notes what came of it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/chaos/rehearsal.hpp"
#include "launcher/chaos/rehearsed_job.hpp"
#include "launcher/chaos/verdict.hpp"

namespace elrun::inline v0::launcher {

/// Stopped workers: until a time is over, or again and again for a share of it. They go on when the object goes.
class WorkerHolds {
 public:
  explicit WorkerHolds(boost::asio::io_context& loop) : loop_{loop} {}
  ~WorkerHolds();
  WorkerHolds(const WorkerHolds&) = delete;
  WorkerHolds& operator=(const WorkerHolds&) = delete;
  /// False where it has gone.
  bool stop(std::size_t fault, Fd worker);
  bool slow(std::size_t fault, Fd worker, std::uint32_t percent);
  void let_go(std::size_t fault);

 private:
  struct Hold {
    Fd worker;
    std::uint32_t percent = 0;  // that it runs; 0: not at all
    bool runs = true;
    std::unique_ptr<boost::asio::steady_timer> timer{};
  };
  void turn(std::size_t fault);
  boost::asio::io_context& loop_;
  std::map<std::size_t, Hold> holds_;
};

/// Lives on the loop. `over` is called once, on the loop, when nothing of the run is left.
/// It conducts: what is due is decided in Rehearsal, processes are RehearsedJob's. More fields than 15: these parts, what it was made with, and what is known of each fault.
class ChaosRun {
 public:
  struct Setting {
    RehearsedSetting job;
    std::vector<Fault> plan{};                ///< Empty: undisturbed.
    std::optional<Duration> limit{};          ///< Of the whole run; none: it may take as long as it wants.
    const SmallDisk* disk = nullptr;          ///< That `fill` fills.
    std::optional<StepVoices> step_voices{};  ///< As the undisturbed run had them. Nothing: any that there are workers for.
  };
  using Say = std::function<void(const std::string&)>;
  ChaosRun(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, Setting setting, Say say, std::function<void()> over);

  /// A failure: nothing of it is left.
  [[nodiscard]] Result<void> start(Orphans& orphans);
  /// Ends all that is left of it, and says no more. Returns the processes that have not ended.
  std::vector<pid_t> abort();
  [[nodiscard]] bool is_known(pid_t pid) const { return job_.is_known(pid); }

  /// Once it is over.
  [[nodiscard]] RunFacts facts() const;
  [[nodiscard]] std::vector<FaultRecord> records() const;
  /// The last lines of the output of the first node that failed.
  [[nodiscard]] std::vector<std::string> last_lines() const;

 private:
  void saw(std::uint32_t node, std::string_view line);
  /// Its workers are lost, and it is away for a time.
  void lose(std::size_t fault, std::uint32_t node);
  /// Of the nodes whose launchers ended by themselves.
  [[nodiscard]] std::vector<NodeEnd> ends() const;
  void wake_in(Duration time);
  void look();
  void do_what_is_due();
  [[nodiscard]] bool all_workers_run() const;
  void note_unexpected_worker();
  /// With an own node: where its workers begin without all nodes of the plan, what hits those that are not there would be made by nobody.
  void note_missing_nodes();
  [[nodiscard]] bool is_over() const;
  /// With an own node: the coordinator of the run before may still be there, and refuses a node of this one. The node's agent is started again.
  [[nodiscard]] bool is_started_again(Instant now);
  /// When the run's time begins to count: of an own node when its workers run, for it waits for the others before.
  [[nodiscard]] Instant counts_from() const { return own_node() ? zero_.value_or(job_.began()) : job_.began(); }
  [[nodiscard]] const std::optional<std::uint32_t>& own_node() const { return setting_.job.options.own_node; }
  [[nodiscard]] bool is_served_elsewhere() const;
  /// Its agent may end with success where the job was over, or had no place for it.
  [[nodiscard]] bool never_worked() const;
  /// Of faults by step that never came.
  void note_steps_not_said();
  [[nodiscard]] bool only_those_run_that_were_away() const;
  /// Notes the first launcher that ended with success, and which nodes are away by then. No fault begins after it; those that last end in time.
  void note_first_success(Instant now);
  /// The worker of that place, and not one that a fault has killed and that still ends.
  [[nodiscard]] bool was_killed(std::uint32_t node, const WorkerProcess& worker) const;
  [[nodiscard]] RehearsalFacts gather(Duration time) const;
  void perform(const FaultAction& action, Duration time);
  /// What was hit, in words; a failure: it was not there any more, or the system refused.
  [[nodiscard]] Result<std::string> begin(std::size_t fault);
  void end(std::size_t fault);
  void finish();
  [[nodiscard]] Result<std::string> hit_worker(std::size_t fault);
  [[nodiscard]] Result<std::string> hit_coordinator(std::size_t fault);

  const Clock& clock_;
  Setting setting_;
  Say say_;
  std::function<void()> over_;
  boost::asio::steady_timer timer_;
  RehearsedJob job_;
  WorkerHolds holds_;
  Rehearsal rehearsal_;
  StepTimeline steps_;
  FinalStates states_;
  std::optional<Instant> zero_;           // of the plan: all workers run
  std::optional<Instant> first_success_;  // of a launcher that ended by itself
  Instant over_at_{};
  std::vector<FaultRecord> records_;
  std::map<std::size_t, std::uint32_t> lost_node_;                   // by the fault that took it
  std::map<std::pair<std::uint32_t, std::uint32_t>, pid_t> killed_;  // by node and local rank, the last one: it may take a while to end
  // Nodes that a fault took or cut off and that do not work for the job again, each with the end of its fault, nothing while that lasts. As it was at the first success.
  std::map<std::uint32_t, std::optional<Instant>> away_;
  std::vector<std::string> notes_;
  Orphans* orphans_ = nullptr;
  std::optional<std::string> unexpected_;  // a worker that the job should not have, in words
  bool in_time_ = true, is_finished_ = false;
  // Of an own node: whether its agent served the rendezvous when a fault took it, whether its workers printed anything, and whether it was said that its agent is started again.
  bool served_when_lost_ = false, have_printed_ = false, told_refusal_ = false;
};

}  // namespace elrun::inline v0::launcher
