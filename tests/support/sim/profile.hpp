#pragma once
/// \file What a seed decides before anything happens: sizes, time-outs, what the network is like, and what will go wrong.

#include <array>
#include <cstdint>
#include <vector>

#include <elrun/philox.hpp>
#include <elrun/plan.hpp>

#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::sim {

enum class FaultKind : std::uint8_t {
  agent_crash,            ///< SIGKILL of an agent: its guard ends the workers, its streams end
  host_crash,             ///< Power off: everything there is gone, and nobody is told
  replaced_while_frozen,  ///< A pod is frozen, another takes its name, the first is thawed
  agent_pause,
  worker_pause,
  coordinator_pause,     ///< Stopped and continued; nobody takes its place
  coordinator_crash,     ///< Gone; a fresh one appears under the name later
  coordinator_replaced,  ///< Paused; a fresh one appears under the name; the old one goes on later
  stream_reset,          ///< In mid-message, told to both ends
  stream_half_open,      ///< As before, but an end learns of it by its own keep-alive only
  partition,             ///< Between two hosts, both ways
  partition_one_way,
  worker_crash,
  clock_jump,
  crash_between_actions,  ///< An agent or coordinator ends between two actions of one list
  pause_between_actions,
  asked_to_leave,  ///< SIGTERM
  new_node,        ///< One more than there were
  count,
};
constexpr std::size_t fault_kinds = static_cast<std::size_t>(FaultKind::count);
[[nodiscard]] const char* to_string(FaultKind kind);

/// What goes wrong with workers whose Jobs are the product's.
enum class JobFault : std::uint8_t {
  pause_at_action,  ///< A worker stands still between two actions
  peer_reset,       ///< The connection of two workers breaks, with what is under way on it
  writer_crash,     ///< SIGKILL of an `elrun ckptd`
  writer_pause,     ///< It stands still, at once or between two operations on the storage
};

/// What ends with a worker that crashes at an action.
enum class CrashOf : std::uint8_t {
  worker,   ///< Nothing else
  workers,  ///< All workers of its node; its agent starts others
  node,     ///< Power off: its agent, too, and nobody is told. It is back later, as another machine
};

/// The workers of two nodes cannot reach each other, while both nodes reach the coordinator.
struct PairCut {
  std::uint32_t a = 0, b = 0;  ///< Nodes, as they are numbered at the start
  bool one_way = false;        ///< Only what `a` sends is lost.
  Duration at{}, length{};     ///< From here on, for so long
};

/// The workers run the product's Job.
struct JobProfile {
  bool real = false;
  Plan plan;
  CheckpointOptions checkpoint;
  std::vector<JobFault> faults;
  std::vector<std::uint64_t> crashes_at;  ///< Actions of all workers together, in their order: whose it is ends there
  CrashOf crash_of = CrashOf::worker;
  bool parcels_die = false;   ///< With a worker that crashes goes what it has sent and is under way; else that is up to chance
  bool parcels_live = false;  ///< Nothing of that goes
  std::vector<std::uint64_t> writer_crashes_at;  ///< The same, of operations of all `elrun ckptd` on the storage
  std::uint64_t crash_at_seal = 0;               ///< Whose slot is sealed as this one of all ends before it can say so; 0: nobody.
  Duration storage_operation{};                  ///< Up to so long each of those takes.
  Duration copying{};                            ///< And a copy of the state into a slot
  std::uint64_t state_rate = 0;                  ///< As JobHost has it: 1 for state that comes beside slots where it can, 0 for none.
  double slow_threads = 0;                       ///< So often a program's thread waits while its session's thread does not
};

struct Profile {
  std::uint64_t seed = 0;
  std::uint32_t nodes = 3;             ///< Agents at the start
  std::vector<std::uint32_t> workers;  ///< Of each node, in turn
  RoundOptions round;
  Timeouts timeouts;
  bool jobs = true;                               ///< Workers are Jobs (sessions, steps, the store); else programs that run and end
  bool stays = false;                             ///< Processes of Jobs go on from one generation to the next
  Duration starts_within = 2s;                    ///< A program that was started beside a generation, until it is ready for its place
  double older_workers = 0.2;                     ///< This part of those has a libelrun that does not tell
  static constexpr Duration ready_at_most = 15s;  ///< So long may one wait that is ready, where a generation runs undisturbed
  bool agents_prepare = true;  ///< Their nodes start their workers before they have a place (`Prepare`). Earlier versions do not.
  bool hosted = false;         ///< The first node's agent hosts the coordinator; else it has a process and host of its own
  bool taken_over = false;     ///< Hosted: when the coordinator's process is gone, another agent hosts; else the first node's successor
  bool elected = false;        ///< Taken over: a coordinator may step down, and its agent lives on
  bool ledger = false;         ///< What began is on record (etcd, a fence): a fresh coordinator starts above it
  Duration delay_min = 100us, delay_spread = 1ms;
  double slow_messages = 0;  ///< This part of all takes a hundred times as long
  Duration spawn = 50ms;     ///< From Spawn to the first word of a worker, up to twice
  std::uint64_t steps = 30;
  Duration step = 500ms;    ///< Up to one and a half times
  double deaf_workers = 0;  ///< This part of the workers does not end on SIGTERM
  static constexpr Duration wedged_at_most = 240s;
  double wedged_workers = 0;   ///< This part takes long to end even on SIGKILL, as with a driver that hangs
  bool worker_faults = false;  ///< Workers die by themselves, too
  bool bad_node = false;       ///< The program cannot start on the last node; the others satisfy the minimum, and nothing else goes wrong
  bool stuck_node = false;     ///< The same, but the program there hangs at its start: no worker of that node ever opens a session
  Duration arrive_within = 2s;
  Duration last_arrives{};  ///< The last node, if not within that
  std::vector<FaultKind> faults;
  std::uint32_t outsiders = 0;  ///< So often somebody says of an agent that it has ended, who does not know its number
  Duration calm_after = 40s;    ///< No fault begins later, and all that lasts is over by then
  JobProfile job;
  std::vector<PairCut> cuts;
  bool only_cuts = false;          ///< Nothing else goes wrong.
  bool exact = false;              ///< No chance and no delay: the explorer decides what comes first
  bool harmless = false;           ///< Nothing goes wrong that a complete generation may end of
  bool coordinator_stays = false;  ///< Nothing happens to it, but a stream breaks just when it gives its verdict
  bool only_hosts_end = false;     ///< But for the ends of agents that host the coordinator, and others are back at once
  Duration coordinator_away = 3s;  ///< At most, when it crashes
  /// Once faults have stopped: a generation runs, or a verdict is there, within this.
  [[nodiscard]] Duration forms_within() const;
  /// Once faults have stopped: every agent has ended within this.
  [[nodiscard]] Duration ends_within() const;
};

[[nodiscard]] Profile profile_of(std::uint64_t seed, std::uint32_t nodes_max);
/// The same, with pairs of nodes that are cut from each other.
[[nodiscard]] Profile cut_profile_of(std::uint64_t seed, std::uint32_t nodes_max, bool job);
/// The same, with workers whose Jobs are the product's.
[[nodiscard]] Profile job_profile_of(std::uint64_t seed, std::uint32_t nodes_max);

}  // namespace elrun::sim
