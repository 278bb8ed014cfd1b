#pragma once
/// \file Supervisor: the agent's decisions as a pure core. Events in, actions out; time is an argument.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <elrun/session.hpp>
#include <elrun/units.hpp>

#include "launcher/options/options.hpp"
#include "launcher/supervise/coordinator_line.hpp"
#include "launcher/supervise/deadlines.hpp"
#include "launcher/supervise/departure.hpp"
#include "launcher/supervise/events.hpp"
#include "launcher/supervise/hang_watch.hpp"
#include "launcher/supervise/losses.hpp"
#include "launcher/supervise/store_calls.hpp"
#include "launcher/supervise/worker.hpp"
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

/// Conducts the parts of a node: its workers (`Worker`), the line to the coordinator (`CoordinatorLine`), store calls under way
/// (`StoreCalls`), waits (`Deadlines`), hangs (`HangWatches`), a signal that ends it (`Departure`), and losses. Each owns its state and
/// decides its part. Here is what concerns several of them: the phases, one handler for each event and message, and one for each wait
/// that is over. Most of its methods are those handlers, and so are more than 25.
class Supervisor {
 public:
  enum class Phase {
    joining,   ///< No generation: it waits for a world.
    running,   ///< Workers of a world run, or have ended and the coordinator was told.
    stopping,  ///< Workers are being ended; then it joins again, or finishes.
    finished,
  };

  explicit Supervisor(SupervisorOptions options);
  [[nodiscard]] std::vector<Action> on(const Event& event, Instant now);
  /// When a Tick has something to do; nothing when only events can help.
  [[nodiscard]] std::optional<Instant> wake_at() const;
  /// The newest generation this node has seen.
  [[nodiscard]] const Generation& last_generation() const { return last_; }
  [[nodiscard]] Phase phase() const { return phase_; }
  /// How often a worker of this node ended a generation.
  [[nodiscard]] std::uint32_t node_restarts() const { return node_restarts_; }
  /// How many workers this node has in the newest world, or wants in the next one.
  [[nodiscard]] std::uint32_t places() const { return places_; }
  /// Of a worker in the newest world; nothing of a pending one.
  [[nodiscard]] std::optional<Rank> rank(LocalRank worker) const;
  [[nodiscard]] bool is_job(LocalRank worker) const { return worker.value() < workers_.size() && workers_[worker.value()].is_job; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  struct AfterStop {
    bool rejoin = true;
    Finish finish;
    int signal = 0;  // that asked for it; 0: none
  };

  void on_started();
  void on_link_up();
  void on_link_down(const Failure& why);
  void on_message(const Refused& m);
  void on_message(const Waiting& m);
  void on_message(const World& m);
  void on_message(const Revoke& m);
  void on_message(const Resumed& m);
  void on_message(const Verdict& m);
  void on_message(const StoreResult& m);
  void on_worker_ended(const WorkerEnded& e);
  void on_worker_said(ConnectionId from, const Hello& hello);
  void on_worker_said(ConnectionId from, const StepDecided& m);
  void on_worker_said(ConnectionId from, const Alive& m);
  void on_worker_wrote(LocalRank worker);
  void on_worker_said(ConnectionId from, const JobOver& m);
  void on_worker_said(ConnectionId from, const PrepareToLeave& m);
  void on_worker_said(ConnectionId from, const GenerationOver& m);
  void on_worker_said(ConnectionId from, const Returned& m);
  void on_worker_said(ConnectionId from, const CheckpointSaved& m);
  void on_worker_said(ConnectionId from, const ReadyForPlace& m);
  void on_worker_said(ConnectionId from, const StoreRequest& m);
  void on_hung_up(ConnectionId from);
  void on_signal(int number);
  void on_tick();

  // Waits that are over
  void on_kill_due();
  void look_again();
  void tell_of_broken_line();
  void leave_unsaved();
  void tell_of_starting();
  void on_hang();
  void end_hung();
  void on_hang_at_start();
  void kill_hung_at_start();
  void kill_the_late();
  void on_verdict_not_heard();
  void on_coordinator_lost();
  void on_join_deadline();
  [[nodiscard]] std::optional<Instant> next_deadline(bool awaited_only) const;
  void excuse_own_stall(Instant last_event);

  // The coordinator
  void join();
  void join_as_broken();
  void report_to_coordinator();
  void tell_of_failure(std::size_t worker);
  void tell_of_the_unreachable();
  void tell_that_workers_are_job();
  void tell_that_workers_are_done();
  void end_without_coordinator();

  // The end of a generation, and of this node
  void stop(AfterStop after, std::optional<int> signal, const Failure& why);
  void stop_if_done();
  void all_stopped();
  void kill_running();
  void kill_staying(bool acknowledged_too);
  void hold_the_broken();
  [[nodiscard]] bool world_hangs() const;
  [[nodiscard]] bool can_prepare_to_leave() const;
  void prepare_to_leave(int signal);
  void leave(int signal);

  // Workers: their start, their places, their end
  void start(std::size_t worker, const World& world, std::uint32_t place, bool pending);
  void give_places(const World& before);
  void welcome(std::size_t worker);
  void ends_early(std::size_t worker, const WorkerEnded& e);
  void judge_early_end(std::size_t worker);
  void watch_starting();
  void has_joined(Worker& w);
  [[nodiscard]] bool waits_for_world(const Worker& w) const;
  [[nodiscard]] std::optional<Instant> hangs_unopened_at() const;
  void choose_pending();
  void tell_it_is_early(std::size_t worker);
  void is_ready(std::size_t worker);
  void on_pending_ended(std::size_t worker);
  void offer_more();
  void dismiss_pending();
  [[nodiscard]] Place place_of(std::size_t worker, const Membership& membership) const;
  [[nodiscard]] std::uint32_t rank_of(std::size_t worker) const;
  [[nodiscard]] std::string name_of(std::size_t worker) const;

  void refuse(ConnectionId connection, Failure why);
  void act(Action action);
  void say(Level level, std::string text) { act(Say{level, std::move(text)}); }

  SupervisorOptions options_;
  Instant now_{};
  std::vector<Action> actions_;  // of the event at hand

  Phase phase_ = Phase::joining;
  Generation last_{};
  World world_;           // who coordinates it may change
  Generation before_{};   // world_: workers that stay may still say that it ended the job
  std::uint32_t places_;  // in world_; while joining: that this node wants in the next one
  Instant world_at_{};    // when world_ was told
  AfterStop after_;       // stopping: then
  Instant stopped_at_{};  // stopping: since when

  // The parts
  Workers workers_;
  CoordinatorLine line_;
  StoreCalls calls_;
  Deadlines deadlines_;
  StallCompensation stall_;
  HangWatches hangs_;
  Departure departure_;
  LostPeers lost_peers_;
  RecoveryTime recovery_;

  // The job, as far as this node knows it
  bool job_over_ = false;
  bool job_known_ = false;    // a worker of this node was a Job's, or the coordinator said so of others
  bool own_failure_ = false;  // a worker of this node ended this generation
  std::uint32_t node_restarts_ = 0;
  std::uint64_t step_ = 0;          // highest decided
  Session::Remembered remembered_;  // what workers that start again are told
};

}  // namespace elrun::inline v0::launcher
