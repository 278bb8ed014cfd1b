#pragma once
/// \file Worker: one worker of this node, from its start until its process is collected. Pure.

#include <array>
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

/// The life of a worker's process.
///
///   none --started--> running --its generation is over--> leaving --acknowledged--> stayed --World--> running
///                       |                                    `-- too late --> stopping <--no next generation--'
///                       `--asked to end--> stopping
///   none --started beside a generation--> pending --ReadyForPlace--> ready --World with a place for it--> running
///                                            |--no next generation--> dismissed <--'
///                                            `--World that counts it in, of an earlier coordinator--> running
///   each of them but none --its process ends--> ended --> collected
enum class Life : std::uint8_t {
  none,       ///< No process was started.
  running,    ///< It has a place in the world.
  leaving,    ///< Its generation is over and it is to stay. It was told so, and has not acknowledged it yet.
  stayed,     ///< It has acknowledged that, and does nothing for the old generation any more.
  stopping,   ///< It was asked to end with its generation, or was to stay and was killed.
  pending,    ///< It was started beside a generation, or after one, for the next one in which it can have a place.
  ready,      ///< The same, and its program waits for the place.
  dismissed,  ///< It was pending, there is no next generation for it, and it was killed.
  ended,      ///< The process has ended, and is a zombie.
  collected,  ///< It is none any more.
};
constexpr std::size_t life_states = 10;
/// The table of transitions.
[[nodiscard]] bool may_follow(Life before, Life after);

/// Where a worker's process is in its life. A transition that is not in the table is a bug, and asserted.
class WorkerLife {
 public:
  void enter(Life next);
  [[nodiscard]] bool is(Life life) const { return now_ == life; }
  /// A process is there, and runs.
  [[nodiscard]] bool lives() const { return now_ != Life::none && !has_ended(); }
  [[nodiscard]] bool has_ended() const { return now_ == Life::ended || now_ == Life::collected; }
  /// Its generation is over, and it is to go on in the next one.
  [[nodiscard]] bool stays() const { return now_ == Life::leaving || now_ == Life::stayed; }
  /// It was dismissed, also if it has ended since.
  [[nodiscard]] bool was_dismissed() const { return (has_ended() ? ended_as_ : now_) == Life::dismissed; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  Life now_ = Life::none;
  Life ended_as_ = Life::none;  // what it was when its process ended
};

/// Of a worker that is started beside a generation.
struct PendingWorker {
  bool is_next = false;              ///< Of a worker that has ended: its successor is started beside the next generation.
  bool is_successor = true;          ///< Else its node had no place in that generation.
  bool says_ready = false;           ///< Its libelrun says when its program waits for a place; an earlier one only acknowledges.
  std::uint32_t place = 0;           ///< In the generation beside which it was started: that of the worker before it
  std::uint32_t restart_count = 0;   ///< As its environment says
  std::optional<Instant> kill_at{};  ///< It hangs at its start, and its stacks are being taken until then.
};

/// What a worker's session has said of itself.
struct WorkerSession {
  std::optional<ConnectionId> connection{};
  std::uint64_t pid = 0;           ///< Of the process that opened it.
  bool opened = false;             ///< Once.
  bool is_job = false;             ///< libelrun's `Job` runs in it; of a pending worker from its start, as the one before it was.
  bool can_stay = false;           ///< Its process can go on in the next generation.
  bool says_end = false;           ///< Its libelrun says the job's end before its process ends.
  bool decided = false;            ///< It has said that a step was decided.
  bool joined = false;             ///< It has asked for its peers, in this generation or before; one without a Job may just stay.
  bool waits_for_storage = false;  ///< It says so, and of which trouble; it does not hang.
  bool job_over = false;           ///< It has said that the job is over: it ends by itself, after work of its own.
};

/// Its process ended with exit code 0 before the job's end. Its last message may not have been read yet.
struct EarlyEnd {
  std::optional<WorkerEnded> seen{};
  std::optional<Instant> judge_by{};  ///< Until then that message may still be read.
  std::string as{};                   ///< How it ended, for people.
};

/// In this generation a worker lost a peer, and cannot go on in it.
enum class PeerLoss : std::uint8_t {
  none,
  said,  ///< It said so, and waits for the word that its generation is over.
  held,  ///< The coordinator is away, and this agent alone gave it that word.
};

/// A worker that goes on in a new generation has to come back from its program, for its peers wait for it.
struct ReturnTime {
  Duration within{};          ///< So long its program may take.
  std::optional<Instant> by;  ///< Then it has to be back, and in its place.
  bool from_before = false;   ///< It was a member of the generation before, too: what it does until it is back is that one's.
};

/// Of a worker in the world `place` is set. Without one it is pending while it lives, and else there is no process.
/// A value with more fields than 15: five of them are values of their own, each of one time in a worker's life.
struct Worker {
  std::int64_t pid = 0;
  std::optional<std::uint32_t> place;    ///< Among this node's workers in the world.
  std::optional<Membership> began_as{};  ///< What its environment says; none: no process was started.
  WorkerLife life{};
  PendingWorker pending{};
  WorkerSession session{};
  EarlyEnd early{};
  PeerLoss peer_loss = PeerLoss::none;
  ReturnTime returns{};
  /// It was started after the failure that ended the generation before, and joined with its node. No step was decided since.
  bool brought_along = false;
  /// It has ended before it was back from the generation before, or was brought along. So its end belongs to the failure of that generation.
  bool ended_away = false;
  bool ready_to_leave = false;
  bool told_alive = false;         ///< That it cannot go on in this generation was told while its process lived.
  bool signalled_to_end = false;   ///< elrun has sent it a signal that ends it, and not because it closed its session.
  std::string hung;                ///< Why it counts as hung; empty: it does not.
  bool was_killed = false;         ///< It got SIGKILL.
  std::optional<Instant> gone_by;  ///< When it has not ended by then, after SIGKILL, it is stuck in the kernel.
  std::string stuck;               ///< It hung, was killed, and has not ended. So it has failed already.
  std::optional<Ending> ending;
  Instant failed_at{};
  WorkerDeath death{};

  /// A process is started for `place` in the world, or beside a generation. Nothing of the one before it is left.
  void start_in(const Membership& membership, std::uint32_t in_place);
  void start_beside(const Membership& membership, std::uint32_t in_place = 0, std::uint32_t restart_count = 0);
  /// It was pending, and counts in a world before its program is ready: the others wait for it, as for one that is started with the world.
  void is_awaited_in(std::uint32_t in_place);
  /// It opened its session on `from`.
  void opens(ConnectionId from, const Hello& hello);
  /// A place in a new world. True: it can be told. Else it has lost its connection, was killed, and is lost in this generation.
  [[nodiscard]] bool take_place(std::uint32_t in_place);
  /// It hears of its place in a new generation: what held for the last one is over. `returning` is the least time to come back from its
  /// program. A Job's program that has not come to its world yet, in any generation, has nothing to come back from: it is still starting.
  void enter_world(Instant now, Duration returning);
  /// Its generation is over. `stay`: those stay who can. True if this one does.
  [[nodiscard]] bool leave_generation(bool stay);
  /// It was to stay, and cannot.
  void give_up() { life.enter(Life::stopping); }
  /// It lost a peer while nobody can end the generation. True once: then it is to be told that the generation is over.
  [[nodiscard]] bool hold();
  /// Its program waits for its place. True when that is news, and it is not being killed.
  [[nodiscard]] bool becomes_ready();
  /// True when it is not back in time, once.
  [[nodiscard]] bool is_late(Instant now);
  /// The process has ended.
  void ends(const WorkerEnded& e, Instant now);

  [[nodiscard]] bool lives() const { return life.lives(); }
  [[nodiscard]] bool in_world() const { return place.has_value(); }
  [[nodiscard]] bool runs() const { return in_world() && !ending; }
  [[nodiscard]] bool is_pending() const { return lives() && !in_world(); }
  [[nodiscard]] bool hangs() const { return in_world() && !hung.empty(); }
  /// It has not joined the world yet, in any generation. A session without a Job has no world to join.
  [[nodiscard]] bool is_starting() const { return runs() && !session.joined && (!session.opened || session.is_job); }
  /// Its process may end with 0 only after it has said that the job is over; a pending one not before it is dismissed.
  [[nodiscard]] bool owes_end() const {
    return in_world() ? session.can_stay && (session.says_end || session.decided) : life.is(Life::pending) || life.is(Life::ready);
  }
  /// It was started beside an earlier generation than the one in which it opens its session.
  [[nodiscard]] bool is_awaited(const Generation& now) const {
    return in_world() && !session.opened && began_as && began_as->generation != now;
  }
  /// It does nothing any more for the generation that is over.
  [[nodiscard]] bool is_stopped() const {
    return ending || life.is(Life::pending) || life.is(Life::ready) || life.is(Life::stayed) ||
           (life.is(Life::leaving) && ELRUN_PLANTED(staying_is_not_acknowledged));
  }
  [[nodiscard]] bool failed() const { return ending && !ending->ok(); }
  /// Of one that has ended, or is stuck. A worker that was killed because it hung died of that.
  [[nodiscard]] int exit_code() const;
  [[nodiscard]] std::string cause() const;
  /// The signal with which its generation ends, or `asked` of the node. A Job's state is revoked and its checkpoints survive a kill, so
  /// SIGKILL; other programs are asked.
  [[nodiscard]] int stop_signal(std::optional<int> asked, bool node_runs_job) const;
};

}  // namespace elrun::inline v0::launcher
