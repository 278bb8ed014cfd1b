#pragma once
/// \file Worker: one worker of this node, from its start until its process is collected; and all of them. Pure.

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "launcher/report/endings.hpp"
#include "launcher/supervise/events.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0::launcher {

/// Of a pending worker: it was started beside a generation, for the next one in which it can have a place.
///
///   started --Hello--> told that its generation is over --ReadyForPlace--> ready --World with a place for it--> in the world
struct PendingWorker {
  bool is_next = false;     ///< Of a worker that has ended: its successor is started beside the next generation.
  bool says_ready = false;  ///< Its libelrun says when its program waits for a place; an earlier one only acknowledges.
  bool is_ready = false;
  bool dismissed = false;            ///< There is no next generation for it.
  std::optional<Instant> kill_at{};  ///< It hangs at its start, and its stacks are being taken until then.
};

/// What a worker's session has said of itself: whether its process may end with exit code 0, and what became of that.
struct SessionSeen {
  bool opened = false;                       ///< Once.
  bool says_end = false;                     ///< Its libelrun says the job's end before its process ends.
  bool decided = false;                      ///< It has said that a step was decided.
  bool joined = false;                       ///< It has joined this generation: it has asked for its peers, or it stays.
  std::optional<WorkerEnded> ended_early{};  ///< Before the job's end. Its last message may not have been read yet.
  std::optional<Instant> judge_by{};         ///< Until then it may still be read.
  std::string early_as{};                    ///< How it ended, for people.
};

/// Of a worker in the world `place` is set. Without one it is pending while it lives, and else there is no process.
struct Worker {
  std::int64_t pid = 0;
  std::optional<std::uint32_t> place;    ///< Among this node's workers in the world.
  std::optional<Membership> began_as{};  ///< What its environment says; none: no process was started.
  PendingWorker pending{};
  std::optional<Ending> ending;
  std::optional<ConnectionId> connection;
  bool is_job = false;
  SessionSeen session{};
  bool can_stay = false;             ///< Its process can go on in the next generation.
  bool stays = false;                ///< And is to: its generation is over.
  bool cannot_go_on = false;         ///< It said so: it lost a peer.
  bool held = false;                 ///< This agent alone told it that its generation is over.
  bool quit = false;                 ///< It has acknowledged that, and does nothing for the old generation any more.
  bool released = false;             ///< It has ended and was collected.
  Duration returns_within{};         ///< So long its program may take to come back to its Job.
  std::optional<Instant> return_by;  ///< Then it has to be back, and in its place.
  bool ready_to_leave = false;
  std::string hung;  ///< Why it counts as hung; empty: it does not.
  Instant failed_at{};
  WorkerDeath death{};

  [[nodiscard]] bool lives() const { return began_as && !ending; }
  [[nodiscard]] bool in_world() const { return place.has_value(); }
  [[nodiscard]] bool runs() const { return in_world() && !ending; }
  [[nodiscard]] bool is_pending() const { return lives() && !in_world(); }
  [[nodiscard]] bool hangs() const { return in_world() && !hung.empty(); }
  /// It has not joined the world yet. A session without a Job has no world to join, and a worker that stays has a time of its own.
  [[nodiscard]] bool is_starting() const { return runs() && !session.joined && (!session.opened || is_job); }
  /// Its process may end with 0 only after it has said that the job is over.
  [[nodiscard]] bool owes_end() const { return can_stay && (session.says_end || session.decided); }
  /// It does nothing any more for the generation that is over.
  [[nodiscard]] bool is_stopped() const {
    return ending || (is_pending() && !pending.dismissed) || (stays && (quit || ELRUN_PLANTED(staying_is_not_acknowledged)));
  }
  [[nodiscard]] bool failed() const { return ending && !ending->ok(); }
  /// Of one that has ended. A worker that was killed because it hung died of that.
  [[nodiscard]] int exit_code() const;
  [[nodiscard]] std::string cause() const;
  /// The signal with which its generation ends, or `asked` of the node. A Job's state is revoked and its checkpoints survive a kill, so
  /// SIGKILL; other programs are asked.
  [[nodiscard]] int stop_signal(std::optional<int> asked, bool node_runs_job) const;
  /// It has its place in a new generation: what held for the last one is over. `returning` is the least time to come back from its program.
  void enter_world(Instant now, Duration returning);
};

/// The workers of this node by local rank. While the node joins: those that stay or are pending, and what is left of others.
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
/// with it. Where some go on, `some_go_on`, the successors of others are started beside it, and marked so.
[[nodiscard]] std::uint32_t places_wanted(Workers& workers, std::uint32_t of, bool some_go_on);
/// Who gets one of `places` in a new world: those that go on, then pending ones that are ready, then those that have to be started.
[[nodiscard]] std::vector<bool> choose_places(const Workers& workers, std::uint32_t places);

}  // namespace elrun::inline v0::launcher
