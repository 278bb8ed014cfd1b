#pragma once
/// \file NodeWorkers: all workers of this node, and what is done to them together. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/session.hpp>
#include <elrun/units.hpp>

#include "launcher/supervise/worker.hpp"
#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

/// By local rank. While the node joins: those that stay or are pending, and what is left of others.
using Workers = std::vector<Worker>;

/// How many workers of the world have a process.
[[nodiscard]] std::size_t running(const Workers& workers);
[[nodiscard]] bool any(const Workers& workers, bool (Worker::*is)() const);
[[nodiscard]] std::optional<std::size_t> worker_with(const Workers& workers, ConnectionId connection);
/// Whose process says Hello. Ranks move from one generation to the next: what its environment said at its start is what it says
/// now, and so may another one's have said. A wrapper has another process number than its program.
[[nodiscard]] std::optional<std::size_t> worker_that_says(const Workers& workers, const Hello& hello);
/// Of those that failed on this node it was the first.
[[nodiscard]] bool failed_first(const Workers& workers, const Worker& worker);
/// What became of those that have all ended: "2 workers ended, 1 worker killed".
[[nodiscard]] std::string fate_of(const Workers& workers);
/// How many places to ask for in the next generation: for workers that go on, pending ones that are ready, and those that are started
/// with it. Where some go on, `some_go_on`, the successors of others are started beside it, and marked so. A node of which only pending workers are left that are
/// not ready asks for all places.
[[nodiscard]] std::uint32_t places_wanted(Workers& workers, std::uint32_t of, bool some_go_on);
/// Who gets one of `places` in a new world: those that go on, then pending ones that are ready, then those that have to be started.
[[nodiscard]] std::vector<bool> choose_places(const Workers& workers, std::uint32_t places);

/// What becomes of one worker when a world begins.
struct GivenPlace {
  enum class Kind {
    start,         ///< It is started for `place`.
    welcome,       ///< It goes on, or was pending: it is told its place.
    awaited,       ///< It is pending and not ready. The world counts it in, so it is told its place as soon as it can be.
    start_beside,  ///< There is none for it. It is started as a pending worker, as if for `place` in the generation before.
  };
  std::size_t worker = 0;
  Kind kind = Kind::start;
  std::uint32_t place = 0;
};

/// How a generation ends for its workers.
struct GenerationEnd {
  Generation generation;
  const Failure& why;         ///< What workers with a session are told.
  bool some_stay = false;     ///< Those that can stay do.
  std::optional<int> signal;  ///< With which the node was asked to end; none: each worker's own
  bool node_runs_job = false;
  bool lets_last_work = false;  ///< Workers that have said that the job is over end by themselves.
};

/// Workers are numbered by their local ranks.
[[nodiscard]] inline LocalRank local_rank(std::size_t worker) { return LocalRank{static_cast<std::uint32_t>(worker)}; }

/// Owns the workers. What is done to several of them comes back as actions, in the order in which they are to be performed. Their names,
/// ranks and places are worked out here. The supervisor says when things are done: there is no deadline here but those of single workers.
/// It has more than 25 methods because each thing that is done to the workers together is a loop over them with a name of its own.
class NodeWorkers {
 public:
  NodeWorkers(std::uint32_t count, RunId run, NodeId node) : count_{count}, run_{std::move(run)}, node_{std::move(node)} {}

  [[nodiscard]] const Workers& all() const { return workers_; }
  [[nodiscard]] std::size_t size() const { return workers_.size(); }
  [[nodiscard]] Worker& operator[](std::size_t worker) { return workers_.at(worker); }
  [[nodiscard]] const Worker& operator[](std::size_t worker) const { return workers_.at(worker); }
  /// In the world; of a pending worker that of the worker before it, in the generation beside which it was started.
  [[nodiscard]] std::uint32_t rank(std::size_t worker) const;
  /// For people: "rank 3 (node n, pid 100)", or "the successor of rank 3 of generation 1 (node n, pid 100)".
  [[nodiscard]] std::string name(std::size_t worker) const;

  // The beginning of a generation. First `begin`, then each place as `give_places` says.
  [[nodiscard]] std::uint32_t places_wanted(bool some_go_on) { return launcher::places_wanted(workers_, count_, some_go_on); }
  /// `none`: the job is over, and no worker starts.
  void begin(const Seat& seat, bool none) { base_rank_ = seat.base_rank, workers_.resize(none ? 0 : count_); }
  /// Of `places`. Workers that were to have one may have died since they were asked for.
  [[nodiscard]] std::vector<GivenPlace> give_places(std::uint32_t places, const Generation& before = {});
  [[nodiscard]] Action start(const GivenPlace& given, const World& world, std::uint32_t node_restarts);
  /// For successors of a Job's workers that have ended in the generation that is over. None where one ended with a code after which the job is not restarted.
  [[nodiscard]] std::vector<GivenPlace> give_places_beside() const;
  /// For those that have no process, where this node has no place yet, as far as there is none for the `places` that it asks for.
  [[nodiscard]] std::vector<GivenPlace> give_places_to_prepare(std::uint32_t places);
  /// For each of these places there is a process that waits for it.
  [[nodiscard]] bool are_prepared(std::uint32_t places) const;
  /// None of them is starting, or about to end.
  [[nodiscard]] bool are_settled() const;
  /// No pending worker is still starting.
  [[nodiscard]] bool are_pending_ready() const;
  /// What a worker in the world is told of its place in it.
  [[nodiscard]] Place place_in(std::size_t worker, const World& world) const;
  /// Tells a pending worker that its generation is over, before it learns its place in it, so it can never act in that generation.
  [[nodiscard]] Actions tell_it_is_early(std::size_t worker, const World& world, const Session::Remembered& remembered) const;

  // The end of a generation.
  [[nodiscard]] Actions end_generation(const GenerationEnd& end);
  [[nodiscard]] bool are_stopped() const;
  /// Those that do not stay are killed.
  [[nodiscard]] Actions kill_running() const { return signal_running(SIGKILL, false); }
  /// Those that were asked to end by another signal get this one too, or are about to end by themselves.
  [[nodiscard]] Actions pass_on(int signal) const { return signal_running(signal, true); }
  /// Those that stay are killed: `late` ones, which did not acknowledge the end within that time, or all, for there is no next generation.
  /// `job_over_in`: the end is that of the job, in this generation.
  [[nodiscard]] Actions kill_staying(std::optional<Duration> late, std::optional<Generation> job_over_in = {});
  /// The job is over: of those that stay, workers that have said so end by themselves. True: there are others, which may be about to say it.
  [[nodiscard]] bool let_last_work();
  [[nodiscard]] bool some_stay() const;
  /// A worker that does not come back from its program answers no peer. It is killed, and started again as a new process. `returning` is the
  /// least time that each has.
  [[nodiscard]] Actions kill_late(Instant now, Duration returning, Generation generation);
  /// There is no next generation: pending workers are killed. Says who they are.
  [[nodiscard]] std::vector<LocalRank> dismiss_pending();
  /// All workers are stopped: collects those that have ended. `leftovers`: what they left behind ends, too.
  [[nodiscard]] Actions collect(bool leftovers);
  /// Where no worker is left, nothing is kept of those that have ended.
  void forget_ended();
  /// One that has ended: what it started is killed, and it is collected.
  [[nodiscard]] Actions collect_at_once(std::size_t worker);

  // What holds while it runs.
  /// Workers that lost a peer while nobody can end their generation are told that it is over: so they keep their state for the next one.
  [[nodiscard]] Actions hold_the_broken(Generation generation);
  /// Workers that hang: with `signal` they end.
  [[nodiscard]] Actions end_hung(int signal) const;
  /// Workers that got SIGKILL and have not ended have until then, where their time was over before.
  void await_killed(Instant until);
  /// Pending workers that hang at their start, and whose stacks have been taken.
  [[nodiscard]] Actions kill_hung_pending(Instant now);
  /// All workers of a Job are asked to save a checkpoint.
  [[nodiscard]] Actions ask_to_save(Generation generation) const;
  /// All workers of the world have done so, or have ended.
  [[nodiscard]] bool have_saved() const;
  /// All of them have a Job's state, and can save it at the next step's end; others only know the signal.
  [[nodiscard]] bool can_save() const;
  /// A step was decided, and so all of them have joined.
  void have_joined();
  /// The job is over: nobody is late and nobody hangs, for what they do now is work of their own.
  void job_is_over();
  /// The next deadline of a single worker.
  [[nodiscard]] std::optional<Instant> next_deadline() const;
  /// This agent did not run for `stalled`: workers have so much longer to come back, and at least until `not_before`.
  void excuse(Duration stalled, Instant not_before);

 private:
  ELRUN_COMPARED_IN_SIMULATION
  [[nodiscard]] Actions signal_running(int signal, bool staying_too) const;

  std::uint32_t count_;
  RunId run_;
  NodeId node_;
  std::uint32_t base_rank_ = 0;  // of the newest world
  Workers workers_;
};

}  // namespace elrun::inline v0::launcher
