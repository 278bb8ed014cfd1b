#pragma once
/// \file What the supervisor is told, and what it asks for: events in, actions out. Values without behaviour.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "launcher/report/endings.hpp"
#include "lib/base/log_line.hpp"
#include "lib/link/message.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

/// A connection of the worker socket, as WorkerServer numbers it.
using ConnectionId = std::uint64_t;

// --- what the shell saw -------------------------------------------------------------------------------------------

struct Started {};
struct LinkUp {};
struct LinkDown {
  Failure why;
};
struct FromCoordinator {
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
struct FromWorker {
  ConnectionId from = 0;
  Message message;
};
/// `elrun ckptd` of this node said it: calls of the store for keys of the job, and that a checkpoint was acknowledged.
struct FromWriter {
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
/// This node will be taken away soon (`--preempt_notice`): as SIGTERM, but a signal that follows it is no second one.
struct NoticeCame {
  std::string words;  ///< Where it came from, and what it says
};
struct Tick {};
using Event = std::variant<Started, LinkUp, LinkDown, FromCoordinator, WorkerStarted, WorkerEnded, FromWorker, FromWriter, WorkerWrote,
                           WorkerHungUp, SignalCame, NoticeCame, Tick>;

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
  bool is_pending = false;  ///< `world` is over: the worker gets a place in a later one, when its program is ready.
};
/// The coordinator has found no other node for this one. Resolve its name again: it may lead elsewhere now.
struct LookAgain {};
/// To the whole process group of the worker, dead or alive.
struct SignalGroup {
  LocalRank worker;
  int number = 0;
};
/// The worker was killed and has not ended: it is stuck in the kernel. Nothing waits for it any more. WorkerEnded follows, as if it had ended, unless
/// that came already.
struct GiveUp {
  LocalRank worker;
};
/// The worker's process has ended and its group was killed: collect it.
struct Release {
  LocalRank worker;
};
/// End all processes that workers started and left behind, in whatever session, before the next action.
struct EndOrphans {
  std::vector<LocalRank> stay{};  ///< These workers live on: what they started is left alone.
};
/// The worker hangs and will be killed soon. Write to the log now what its threads are doing.
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
  std::string went_on_from{};         ///< The checkpoint that the job went on from last, for people; empty: it never did.
  std::string after_signal{};         ///< What became of the workers, when this node was asked to end.
};
/// What the supervisor holds of a worker's end, which is not always what its process said: for pages, metrics and events.
struct JudgedEnd {
  LocalRank worker;
  Ending ending;      ///< Exit code 0 in the middle of a job is code 1.
  std::string cause;  ///< In words
  bool is_failure =
      false;  ///< It failed by itself in a generation, or when that was over: not after the job's end, and elrun had not ended it.
  bool was_in_world = true;  ///< Else its place was that of the worker before it.
};
using Action = std::variant<Send, LookAgain, Spawn, SignalGroup, GiveUp, Release, EndOrphans, TakeStacks, Answer, HangUp, Say, Finish>;
using Actions = std::vector<Action>;

/// To the end, in order.
void add(Actions& actions, Action action);
void add_all(Actions& actions, Actions more);

}  // namespace elrun::inline v0::launcher
