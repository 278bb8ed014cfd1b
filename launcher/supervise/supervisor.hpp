#pragma once
/// \file Supervisor: the agent's decisions as a pure core. Events in, actions out; time is an argument.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <elrun/units.hpp>

#include "launcher/options/options.hpp"
#include "launcher/report/endings.hpp"
#include "launcher/supervise/hang_watch.hpp"
#include "lib/base/log.hpp"
#include "lib/base/planted.hpp"
#include "lib/link/message.hpp"
#include "lib/link/store_memory.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

constexpr std::size_t store_calls_per_worker_max = 4096;  ///< Under way at one time; one more is refused.

/// A connection of the worker socket, as WorkerServer numbers it.
using ConnectionId = std::uint64_t;

// --- what the shell saw -------------------------------------------------------------------------------------------

struct Started {};
struct LinkUp {};
struct LinkDown {
  Failure why;
};
struct CoordinatorSaid {
  CoordinatorMessage message;
};
struct WorkerStarted {
  LocalRank worker;
  std::int64_t pid = 0;
};
/// The process ended (or could not be executed: exit code 126 or 127). It stays a zombie until Release.
struct WorkerEnded {
  LocalRank worker;
  Ending ending;
  WorkerDeath death{};  ///< What the shell found out, when it did not end well.
  Duration ago{};       ///< When it failed, which its error record may tell: the process can live on for a while.
};
struct WorkerSaid {
  ConnectionId from = 0;
  Message message;
};
/// It gave a sign of progress by what it wrote.
struct WorkerWrote {
  LocalRank worker;
};
struct WorkerHungUp {
  ConnectionId from = 0;
};
struct SignalCame {
  int number = 0;
};
struct Tick {};
using Event = std::variant<Started, LinkUp, LinkDown, CoordinatorSaid, WorkerStarted, WorkerEnded, WorkerSaid, WorkerWrote, WorkerHungUp,
                           SignalCame, Tick>;

// --- what the shell is to do --------------------------------------------------------------------------------------

/// To the coordinator. A Join lacks who, run, version, address and port: the shell knows them.
struct Send {
  NodeMessage message;
};
struct Spawn {
  World world;
  LocalRank worker;
  std::uint32_t node_restarts = 0;
  std::uint32_t place = 0;  ///< Among the workers that the node has in `world`
  bool is_coming = false;   ///< `world` is over: it comes into the next one when its program is ready for that.
};
/// The coordinator has nobody else for this node: does its name still lead there?
struct LookAgain {};
/// To the whole process group of the worker, dead or alive.
struct SignalGroup {
  LocalRank worker;
  int number = 0;
};
/// The worker's process has ended and its group was killed: collect it.
struct Release {
  LocalRank worker;
};
/// What workers started and left behind, in whatever session, is ended before anything else is done.
struct EndOrphans {
  std::vector<LocalRank> stay{};  ///< What these started is spared: they live.
};
/// The worker hangs, and is killed in a moment: what its threads do is written to the log now.
struct TakeStacks {
  LocalRank worker;
};
struct Answer {
  ConnectionId to = 0;
  Message message;
};
struct HangUp {
  ConnectionId connection = 0;
};
struct Say {
  Level level = Level::info;
  std::string text;
  bool is_of_job = false;  ///< The coordinator's log has it, too.
};
/// Nothing is left to do: no worker runs.
struct Finish {
  int exit_code = 0;
  std::string first_failure;          ///< For people; empty when there is nothing to explain
  bool by_verdict = false;            ///< The coordinator decided it: it may have to tell others.
  std::vector<WorkerDeath> deaths{};  ///< The root cause first; empty when no worker decided it
  std::string after_signal{};         ///< What became of the workers, when this node was asked to end.
};
using Action = std::variant<Send, LookAgain, Spawn, SignalGroup, Release, EndOrphans, TakeStacks, Answer, HangUp, Say, Finish>;

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
  /// Of a worker in the newest world; nothing of one that is still coming.
  [[nodiscard]] std::optional<Rank> rank(LocalRank worker) const;
  [[nodiscard]] bool is_job(LocalRank worker) const { return worker.value() < workers_.size() && workers_[worker.value()].is_job; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  /// Of a worker that was started beside a world: for the next one in which it can have a place.
  struct Coming {
    bool is_next = false;     // of one that has ended: its successor is started beside the next world
    bool says_ready = false;  // its libelrun tells when its program waits for a place; else it acknowledges alone
    bool is_ready = false;
    bool dismissed = false;            // there is no next world for it
    std::optional<Instant> kill_at{};  // it hangs at its start, and its stacks are being taken until then
  };
  /// Whether its process may end with exit code 0, and what became of that.
  struct SessionSeen {
    bool opened = false;                       // once
    bool says_end = false;                     // its libelrun says the job's end before its process ends
    bool decided = false;                      // it has said that a step was
    bool joined = false;                       // of world_: it has asked for its peers, or it stays
    std::optional<WorkerEnded> ended_early{};  // before the job's end: what it said last may not have been read
    std::optional<Instant> judge_by{};         // then
    std::string early_as{};                    // how it ended, for people
  };
  struct Worker {
    std::int64_t pid = 0;
    std::optional<std::uint32_t> place;    // among this node's workers in world_; none: it is coming, or there is no process
    std::optional<Membership> began_as{};  // what its environment says; none: no process was started
    Coming coming{};
    std::optional<Ending> ending;
    std::optional<ConnectionId> connection;
    bool is_job = false;
    SessionSeen session{};
    bool can_stay = false;      // its process can go on in the next generation
    bool stays = false;         // and is to: its generation is over
    bool cannot_go_on = false;  // it said so: it lost a peer
    bool held = false;          // it was told by this agent alone that its generation is over
    bool quit = false;          // it acknowledged that, and does nothing for the old one any more
    bool released = false;      // it has ended and was collected
    Duration returns_within{};
    std::optional<Instant> return_by;  // from its own code to its place in world_
    bool ready_to_leave = false;
    std::string hung;  // as far as can be told: why it is ended, or was
    Instant failed_at{};
    WorkerDeath death{};
  };
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

  [[nodiscard]] bool can_prepare_to_leave() const;
  void prepare_to_leave(int signal);
  void leave(int signal);

  void join();
  void join_as_broken();
  void report_to_coordinator();
  void tell_of_failure(std::size_t worker);
  void tell_that_workers_are_job();
  void tell_that_workers_are_done();
  [[nodiscard]] static bool owes_end(const Worker& w) { return w.can_stay && (w.session.says_end || w.session.decided); }
  void ends_early(std::size_t worker, const WorkerEnded& e);
  void judge_early_end(std::size_t worker);
  void end_without_coordinator();
  void stop(AfterStop after, std::optional<int> signal, const Failure& why);
  [[nodiscard]] static int code_of(const Worker& w);
  [[nodiscard]] static std::string cause_of(const Worker& w);
  void on_hang();
  [[nodiscard]] bool world_hangs() const;
  [[nodiscard]] bool some_hang() const;
  void end_hung();
  void kill_running();
  void kill_staying(bool acknowledged_too);
  void kill_the_late();
  [[nodiscard]] std::optional<Instant> next_deadline() const;
  void excuse_own_nap(Instant last_event);
  void hold_the_broken();
  void tell_of_broken_line();
  void tell_of_the_unreachable();
  void note_loss();
  void welcome(std::size_t worker);
  [[nodiscard]] Place place_of(std::size_t worker, const Membership& membership) const;
  void all_stopped();

  // Workers that have not joined the world yet
  [[nodiscard]] static bool is_starting(const Worker& w);
  [[nodiscard]] bool waits_for_world(const Worker& w) const;
  void watch_starting();
  void tell_of_starting();
  void has_joined(Worker& w);
  [[nodiscard]] std::optional<Instant> hangs_unopened_at() const;

  // Workers that are coming
  [[nodiscard]] static bool lives(const Worker& w) { return w.began_as && !w.ending; }
  [[nodiscard]] static bool in_world(const Worker& w) { return w.place.has_value(); }
  [[nodiscard]] static bool is_coming(const Worker& w) { return lives(w) && !in_world(w); }
  void start(std::size_t worker, const World& world, std::uint32_t place, bool coming);
  void choose_coming();
  void tell_it_is_early(std::size_t worker);
  void is_ready(std::size_t worker);
  void on_coming_ended(std::size_t worker);
  void on_hang_at_start();
  void kill_hung_at_start();
  void offer_more();
  void dismiss_coming();
  void give_places(const World& before);

  [[nodiscard]] bool is_stopped(const Worker& w) const {
    return w.ending || (is_coming(w) && !w.coming.dismissed) || (w.stays && (w.quit || ELRUN_PLANTED(staying_is_not_acknowledged)));
  }
  void stop_if_done();
  void refuse(ConnectionId connection, Failure why);
  [[nodiscard]] std::size_t running() const;
  [[nodiscard]] static StoreReply refused_call(const StoreRequest& call, Code code, std::string what);
  [[nodiscard]] std::string fate_of_workers() const;
  [[nodiscard]] std::uint32_t rank_of(std::size_t worker) const;
  [[nodiscard]] std::string name_of(std::size_t worker) const;
  [[nodiscard]] std::optional<std::size_t> worker_at(ConnectionId connection) const;
  [[nodiscard]] std::optional<std::size_t> worker_that_is(const Hello& hello) const;
  void act(Action action);
  void say(Level level, std::string text) { act(Say{level, std::move(text)}); }

  SupervisorOptions options_;
  Instant now_{};
  std::vector<Action> actions_;  // of the event at hand

  Phase phase_ = Phase::joining;
  Generation last_{};
  std::uint64_t heard_ = 0;      // the newest generation that ran without this node
  World world_;                  // who coordinates it may change
  Generation before_{};          // world_: workers that stay may still say that it ended the job
  std::vector<Worker> workers_;  // by local rank. While joining: those that stay or are coming, and what is left of others
  std::uint32_t places_;         // in world_; while joining: that this node wants in the next one
  AfterStop after_;
  std::map<std::pair<ConnectionId, std::uint64_t>, StoreRequest> calls_;  // under way; by caller and its number
  StoreMemory memory_;                                                    // what this node's workers did to the store in this generation

  bool link_up_ = false;
  bool served_ = false;  // a coordinator has confirmed world_ on this link: its store answers
  bool job_over_ = false;
  bool job_known_ = false;                    // a worker of this node was a Job's, or the coordinator said so of others
  bool told_job_ = false;                     // the coordinator knows that the workers of this generation are a Job's
  bool coordinator_silent_ = false;           // the last line ended because nothing came any more
  bool own_failure_ = false;                  // a worker of this node ended this generation
  bool peer_lost_ = false;                    // a worker of this node said so of this generation
  std::string peer_lost_why_;                 // in its words
  std::vector<PeerUnreachable> unreachable_;  // what workers of this node said of peers in this generation
  std::uint32_t node_restarts_ = 0;
  std::uint64_t step_ = 0;                   // highest decided
  Session::Remembered remembered_;           // what workers that start again are told
  int signals_ = 0;                          // that asked to end
  int leaving_by_ = 0;                       // the signal, while workers save what would be lost
  std::optional<Instant> leave_at_;          // then at the latest
  std::optional<Instant> gone_by_;           // the end of the grace that began with that signal
  bool lost_ = false;                        // this generation: a worker or node of it
  std::optional<Instant> lost_at_;           // since the last recovery: when
  std::optional<Instant> join_by_;           // no coordinator has spoken yet
  std::optional<Instant> look_again_at_;     // the coordinator has nobody else for this node
  std::optional<Instant> coordinator_by_;    // the coordinator is away
  std::optional<Instant> verdict_by_;        // the job is over here, and no coordinator knows it yet
  std::optional<Instant> kill_at_;           // stopping
  std::optional<Instant> excused_at_;        // this agent was asleep, and blamed nobody for it
  std::optional<Instant> broken_line_at_;    // a peer was lost, and nobody has said of what until then
  std::optional<Instant> acknowledge_by_;    // stopping: those who stay
  HangWatch hang_, hang_at_start_;           // of workers in the world; of those that are coming
  HangWatch hang_unopened_;                  // of workers in the world that have opened no session yet
  Instant world_at_{};                       // when world_ was told
  std::optional<Instant> tell_starting_at_;  // workers that have not joined by then are told of
  std::optional<std::tuple<std::uint32_t, std::uint32_t, bool>>
      told_starting_;                   // the first of them, their number, whether its session is open
  std::optional<Instant> end_hung_at_;  // stacks are being taken until then
  bool hung_were_asked_ = false;        // by SIGABRT
  Instant stopped_at_{};                // stopping: since when
  std::string waiting_for_;             // last reason, for people
};

}  // namespace elrun::inline v0::launcher
