#pragma once
/// \file Supervisor: the agent's decisions as a pure core. Events in, actions out; time is an argument.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <elrun/units.hpp>

#include "launcher/options/options.hpp"
#include "launcher/supervise/coordinator_line.hpp"
#include "launcher/supervise/deadlines.hpp"
#include "launcher/supervise/departure.hpp"
#include "launcher/supervise/events.hpp"
#include "launcher/supervise/hang_watch.hpp"
#include "launcher/supervise/job_progress.hpp"
#include "launcher/supervise/node_generation.hpp"
#include "launcher/supervise/node_workers.hpp"
#include "launcher/supervise/prepared_place.hpp"
#include "launcher/supervise/stop_plan.hpp"
#include "launcher/supervise/store_calls.hpp"
#include "launcher/supervise/successor_wait.hpp"
#include "launcher/supervise/worker_reports.hpp"
#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

/// What it depends on.
struct SupervisorOptions {
  RoundOptions round;
  std::uint32_t workers = 1;
  Timeouts timeouts;
  RunId run;
  NodeId node;
  Duration hang_timeout{0};  ///< 0: hangs are not looked for.
  HangSign hang_sign = HangSign::progress;
  std::string coordinator;  ///< For people: "node0:29400", or "this process".
};

/// Conducts the parts of a node. Each owns its state and decides its part: the generation and the job (`NodeGeneration`, `JobProgress`),
/// the workers (`NodeWorkers`, `Worker`), the line to the coordinator and what is told on it (`CoordinatorLine`, worker_reports.hpp), store
/// calls under way (`StoreCalls`), waits (`Deadlines`, `SuccessorWait`), hangs (`HangWatches`), and the end (`StopPlan`, `Departure`). Here are the phases,
/// and what concerns several parts. It has more than 25 methods because each event, each message, and each wait that ends in more than
/// a line has a handler of its own.
class Supervisor {
 public:
  enum class Phase {
    joining,   ///< No generation: it waits for a world, or first for the successors that it brings along.
    running,   ///< Workers of a world run, or have ended and the coordinator was told.
    stopping,  ///< Workers are being ended; then it joins again, or finishes.
    finished,
  };

  explicit Supervisor(SupervisorOptions options);
  [[nodiscard]] Actions on(const Event& event, Instant now);
  /// When a Tick has something to do; nothing when only events can help.
  [[nodiscard]] std::optional<Instant> wake_at() const;
  /// The newest generation this node has seen.
  [[nodiscard]] const Generation& last_generation() const { return generation_.last(); }
  [[nodiscard]] Phase phase() const { return phase_; }
  /// How often a worker of this node ended a generation.
  [[nodiscard]] std::uint32_t node_restarts() const { return job_.node_restarts(); }
  [[nodiscard]] const StepProgress& newest_step() const { return job_.newest_step(); }
  /// How many workers this node has in the newest world, or wants in the next one.
  [[nodiscard]] std::uint32_t places() const { return generation_.places(); }
  /// Of a worker in the newest world; nothing of a pending one.
  [[nodiscard]] std::optional<Rank> rank(LocalRank worker) const;
  /// Workers whose end was judged with the newest event.
  [[nodiscard]] const std::vector<JudgedEnd>& judged_ends() const { return judged_; }
  /// Its process can go on in the next generation, whatever becomes of the others.
  [[nodiscard]] bool can_stay(LocalRank worker) const {
    return worker.value() < workers_.size() && workers_[worker.value()].session.can_stay;
  }
  [[nodiscard]] bool is_job(LocalRank worker) const { return worker.value() < workers_.size() && workers_[worker.value()].session.is_job; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  // One for each event
  void on_link_up();
  void on_link_down(const Failure& why);
  void on_worker_started(const WorkerStarted& e) { workers_[e.worker.value()].pid = e.pid, hangs_.has_process(e.worker, now_); }
  void on_worker_ended(const WorkerEnded& e);
  void on_worker_wrote(LocalRank worker);
  void on_writer_message(const FromWriter& e);
  void on_hung_up(ConnectionId from);
  void on_signal(int number);
  void on_notice(const NoticeCame& e);
  void on_tick();

  // One for each message of the coordinator
  void on_message(const Refused& m);
  void on_message(const Waiting& m);
  void on_message(const World& m);
  void on_message(const Revoke& m);
  void on_message(const Resumed& m);
  void on_message(const Verdict& m);
  void on_message(const StoreResult& m);
  void on_message(const Prepare& m);

  // One for each message of a worker
  void on_worker_message(ConnectionId from, const Hello& hello);
  void on_worker_message(ConnectionId from, const StepDecided& m);
  void on_worker_message(ConnectionId from, const Alive& m);
  void on_worker_message(ConnectionId from, const JobOver& m);
  void on_worker_message(ConnectionId from, const PrepareToLeave& m);
  void on_worker_message(ConnectionId from, const GenerationOver& m);
  void on_worker_message(ConnectionId from, const Returned& m);
  void on_worker_message(ConnectionId from, const CheckpointSaved& m);
  void on_worker_message(ConnectionId from, const WentOnFrom& m);
  void on_worker_message(ConnectionId from, const WaitsForStorage& m);
  void on_worker_message(ConnectionId from, const ReadyForPlace& m);
  void on_worker_message(ConnectionId from, const StoreRequest& m);

  // Waits that are over
  void on_broken_line();
  void on_hang();
  void on_hang_of_pending();
  void on_late_preparation();
  void on_coordinator_lost();
  void on_stuck(std::size_t worker);
  void on_join_deadline();
  [[nodiscard]] std::optional<Instant> next_deadline(bool awaited_only) const;
  void excuse_own_stall(Instant last_event);

  // The coordinator
  void join();
  void join_as_broken();
  void end_without_coordinator();
  [[nodiscard]] NodeView view() const;

  // Workers: their places, their start, and their end
  void start_workers(const World& before);
  void start_worker(const GivenPlace& given, const World& world);
  void bring_successors_along(const World& revoked);
  void join_next();
  /// Others of this node go on. Who coordinates takes those in that come later; an earlier version would leave them out for good.
  [[nodiscard]] bool successors_can_come_later() const { return generation_.world().takes_more && any(workers_.all(), &Worker::runs); }
  void tell_prepared();
  void fail_preparation(const Worker& w);
  void end_preparation();
  void end_hung_pending(LocalRank worker, std::string why, const char* option);
  void watch_starts();
  void welcome(std::size_t worker);
  void becomes_ready(std::size_t worker);
  void note_progress(std::size_t worker, std::uint64_t step);
  [[nodiscard]] bool waits_for_world(const Worker& w) const;
  void ends_early(std::size_t worker, const WorkerEnded& e);
  void judge_early_end(std::size_t worker);
  void fails_while_it_stays(std::size_t worker);
  void judge_last_work(std::size_t worker);
  void on_pending_ended(std::size_t worker);
  [[nodiscard]] bool is_own_failure(const Worker& w) const;
  void tell_of_failure(std::size_t worker);

  // The end of a generation, and of this node
  void stop(AfterStop after, std::optional<int> signal, const Failure& why);
  void stop_if_done();
  void kill_staying(std::optional<Duration> late);
  void let_last_work();
  [[nodiscard]] bool let_job_end(bool by_verdict);
  void end_over_job();
  void hold_the_broken();
  void dismiss_pending();
  [[nodiscard]] bool can_save() const { return phase_ == Phase::running && !job_.is_over() && workers_.can_save(); }
  void prepare_to_leave(int signal, const std::string& why);
  void leave(int signal, const std::string& why);

  void refuse(ConnectionId connection, Failure why);
  void act(Action action);
  void act(Actions actions);
  void say(Level level, std::string text) { act(Say{level, std::move(text)}); }

  SupervisorOptions options_;
  Instant now_{};
  Actions actions_;                // of the event at hand
  std::vector<JudgedEnd> judged_;  // with it
  Phase phase_ = Phase::joining;
  NodeGeneration generation_;
  JobProgress job_;
  NodeWorkers workers_;
  CoordinatorLine line_;
  StoreCalls calls_;
  Deadlines deadlines_;
  StallCompensation stall_;
  HangWatches hangs_;
  Departure departure_;
  StopPlan stop_;
  SuccessorWait successors_;
  PreparedPlace preparation_;
};

}  // namespace elrun::inline v0::launcher
