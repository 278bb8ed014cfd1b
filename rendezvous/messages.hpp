#pragma once
/// \file What agents and the coordinator say to each other, as values. Protobuf stays in wire.cpp.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"
#include "lib/link/store_call.hpp"

namespace elrun::inline v0 {

constexpr std::uint32_t nodes_limit = 131072;
constexpr std::uint32_t workers_per_node_limit = 4096;

/// What all nodes must agree on. The coordinator takes the first node's; another node's are compared field by field.
struct RoundOptions {
  std::uint32_t nodes_min = 1;     ///< A round never closes with fewer.
  std::uint32_t nodes_max = 1;     ///< A round closes at once with this many.
  Duration last_call = 30s;        ///< Once `nodes_min` have joined, how long to wait for more newcomers.
  std::int32_t max_restarts = -1;  ///< -1: not given (3 for a Job program, 0 for others).
  friend bool operator==(const RoundOptions&, const RoundOptions&) = default;
  [[nodiscard]] std::vector<std::string> problems() const;
};

/// One run of one agent: a node that comes back is a new incarnation of the same node.
struct Incarnation {
  NodeId node;
  std::uint64_t number = 0;  ///< Random, drawn at the agent's start.
  friend auto operator<=>(const Incarnation&, const Incarnation&) = default;
};

/// The place of one node in one generation. All seats of a generation together tell a coordinator that did not see it
/// begin who its members are, so no node needs the whole list.
struct Seat {
  std::uint32_t group_rank = 0;  ///< Place among the nodes
  std::uint32_t base_rank = 0;   ///< Rank of the node's first worker
  std::uint32_t nodes = 1;       ///< Of the generation
  std::uint32_t world_size = 1;  ///< Of the generation: workers of all nodes
  std::uint64_t roster = 0;      ///< Hash of all members: whoever agrees on it is in the same world.
  friend bool operator==(const Seat&, const Seat&) = default;
};

/// The place of one node's workers among all workers of their role (`--role`). Size 0: not told; then all have one role.
struct RolePlace {
  std::uint32_t base_rank = 0;
  std::uint32_t world_size = 0;
  friend bool operator==(const RolePlace&, const RolePlace&) = default;
};

/// Where a process listens until it ends, without ever taking a connection. Who is refused there knows that it has ended.
struct LivenessPort {
  std::string address;  ///< A literal, by which its stream leaves its host
  std::uint16_t port = 0;
  friend bool operator==(const LivenessPort&, const LivenessPort&) = default;
};

/// How often the job began again; a fresh coordinator counts on from here.
struct RestartCounts {
  std::uint32_t generations = 0;  ///< That ended by a failure, in the whole job
  std::uint32_t used = 0;         ///< Of the budget (`--max_restarts`)
  friend bool operator==(const RestartCounts&, const RestartCounts&) = default;
};

// --- agent to coordinator ---------------------------------------------------------------------------------------

/// How far the workers of a node are that waits for a world.
enum class Preparedness : std::uint8_t {  // on the wire by number; an earlier version reads what it does not know as none
  none,                                   ///< They are to be started, or have places.
  starting,   ///< It was told to `Prepare`, by another coordinator or on an earlier stream. `MoreWorkers` or `NotPrepared` follows.
  ready,      ///< All of them wait for a place, and some of them were in the last generation: they may have state.
  some_stay,  ///< Some of them were in the last generation, and others are to be started.
  fresh,      ///< All of them wait for a place, and none of them was in the last generation.
};
inline constexpr Preparedness preparedness_last = Preparedness::fresh;
[[nodiscard]] inline bool has_survivors(Preparedness p) { return p == Preparedness::ready || p == Preparedness::some_stay; }

/// I am here. Sent when the stream opens, and again for each new generation once the workers of the old one are gone. A message: its fields are
/// independent facts about one node, and each part of the coordinator reads the few that it needs.
struct Join {
  Incarnation who;
  RunId run;
  std::string version;  ///< elrun's; same major or refused
  RoundOptions options;
  std::uint32_t workers =
      1;  ///< Places that it wants, or with a seat has. 0: it counts as a node, has no place in a world, and hears the verdict.
  std::string address;            ///< How peers reach this node.
  std::uint16_t master_port = 0;  ///< A free port on this node for this generation, in case it becomes node 0.
  std::int32_t hint =
      -1;  ///< `--node_rank`. It orders newcomers, and all nodes of a fixed world if each gave another one. It never identifies a node.
  Generation last{};         ///< Newest generation this agent has seen; number 0: none
  std::uint64_t heard = 0;   ///< Number of the newest generation that this node was told runs without it
  bool resuming = false;     ///< The stream broke, and workers of `last` still run here.
  std::optional<Seat> seat;  ///< The place in `last`. Resuming: to carry on with it; without one, they are being ended.
  RestartCounts restarts;    ///< As told with `last`
  std::string topology;      ///< "zone/rack/host": nodes that share a label get neighbouring ranks; may be empty
  bool broken = false;       ///< With a seat: a worker here has failed or lost a peer, so `last` cannot go on.
  std::string role;          ///< Of all workers of this node: those of one role are numbered among themselves, too
  std::optional<std::uint32_t>
      coordinated_by;                    ///< With a seat, unless `JobFinished` follows: what was told of that last, with `last` or since
  bool coordinator_fell_silent = false;  ///< With `coordinated_by`: the line to that coordinator did not end, nothing came on it any more.
  std::string place;            ///< Where this agent runs, as a digest: the agent that comes after it there says the same. Empty: not told
  bool may_coordinate = false;  ///< Where coordinators are elected: it campaigns when there is none.
  bool confirms_verdict = false;  ///< It says `VerdictReceived`. Of a node that does not, the end of its stream has to mean that.
  Duration heartbeat{};           ///< It says this often that it lives (`keep_alive_interval`), `heartbeat_told_max` at most. 0: not told
  Duration stop_grace{};  ///< Its `--shutdown_timeout`, `stop_grace_told_max` at most: so long its workers may take to end. 0: not told
  bool prepares = false;  ///< It heeds `Prepare`.
  Preparedness preparedness = Preparedness::none;
  bool has_trained =
      false;  ///< Workers of this node decided a step of the job, in whatever generation: a coordinator that saw none knows of it then.
  std::optional<LivenessPort> liveness;  ///< Of this agent; none: it has no such port
};
constexpr Duration heartbeat_told_max = 24h;
constexpr Duration stop_grace_told_max = 1h;  ///< The others wait no longer than this for a node that ends its workers.
/// By how much the grace of its workers is longer than what others have.
[[nodiscard]] inline Duration longer_grace(const Join& join, Duration others) {
  return std::max<Duration>(join.stop_grace - others, Duration{0});
}
struct NodeAlive {};
/// The workers of this node that belonged to the generation are gone; it may be followed by Join.
struct Acknowledge {
  Generation generation;
};
/// How one worker ended by itself, for people and for what reads logs: a record, with a field for each line of a report. Its texts are bounded,
/// see `bounded`.
struct WorkerDeath {
  NodeId node;  ///< This and the next three: the coordinator knows them itself.
  Generation generation;
  std::uint32_t rank = 0;
  std::uint32_t local_rank = 0;
  std::string host;
  std::int64_t pid = 0;
  std::int32_t exit_code = 0;  ///< Its own; of a signal 0
  std::int32_t signal = 0;
  std::int64_t wall_ns = 0;  ///< When, by its node's clock, which others need not share
  std::string program;
  std::string error_file;  ///< Where its error record can be read later; empty: nowhere
  std::string error;       ///< "RuntimeError: no such device", out of its error record
  std::string traceback;
  std::string last_lines;  ///< Of its standard error, where elrun has it
  std::string evidence;    ///< What its node saw of the cause, such as an OOM kill
  bool never_ran = false;  ///< It could not be executed: the exit code is elrun's, not the program's.
  /// Its process had not ended when its node told of it: it cannot go on, or is stuck in the kernel. Then there is no end of which exit code and signal could be.
  [[nodiscard]] bool lived() const { return pid != 0 && wall_ns == 0; }
  friend bool operator==(const WorkerDeath&, const WorkerDeath&) = default;
};
constexpr std::size_t death_line_max = 1024;  ///< Of a text that is one line
constexpr std::size_t death_traceback_max = 8192;
constexpr std::size_t death_last_lines_max = 4096;
constexpr std::size_t death_beside_max = 512;  ///< Of traceback and last lines of those that were not first
constexpr std::size_t deaths_max = 8;          ///< In one verdict
/// With its texts cut to their limits; of traceback and last lines the end is kept, where the cause stands.
[[nodiscard]] WorkerDeath bounded(WorkerDeath death, std::size_t traceback_max = death_traceback_max,
                                  std::size_t last_lines_max = death_last_lines_max);

/// A worker died by itself. The earliest of a generation is its root cause.
struct WorkerFailed {
  Generation generation;
  std::uint32_t local_rank = 0;
  std::int32_t exit_code = 0;  ///< 128 + n for signal n
  std::string what;            ///< "exit code 3", "signal 9 (SIGKILL)"
  bool is_job = false;
  Duration ago{};  ///< How long before this was sent: clocks of nodes differ.
  WorkerDeath death;
  std::optional<std::uint32_t> rank{};  ///< In that generation, or in `successor_in`. None: the node's first, and `local_rank` more
  bool before_session = false;          ///< It never opened a session: what it would have been, a Job or not, nobody was told.
  /// Its program was still doing what it began in the generation before, of which it was a member, too. Or it was started after the failure of that generation,
  /// joined this one with its node, and no step was decided since.
  bool before_return = false;
  /// It was in no world yet. It was started as the successor of `rank` of this generation, which another worker has by now. None: it was in `generation`
  std::optional<Generation> successor_in{};
};
/// EX_CONFIG: a Job program that ends so was told something that no restart changes.
constexpr std::int32_t exit_code_configuration = 78;
/// A Job program ends so when no checkpoint could be saved for CheckpointOptions::max_age. A start that goes on from the old one would do again what it
/// lost, and could save no more.
constexpr std::int32_t exit_code_checkpoint_too_old = 173;
/// All workers of this node exited with 0.
struct WorkersDone {
  Generation generation;
  bool before_session = false;  ///< None of them ever opened a session.
};
/// The workers decided that the job is over with success.
struct JobFinished {
  Generation generation;
};
struct Progress {
  Generation generation;
  std::uint64_t step = 0;
};
/// The node leaves, after a signal or a notice. This is no failure of the job.
struct Leave {
  std::string why;
};
/// Workers of this node were started beside the generation, and are ready to be in the next one. Of a node that has no place yet: all of its workers
/// are, as `Prepare` asked for.
struct MoreWorkers {
  Generation generation;
  std::uint32_t count = 0;  ///< So many. 0: not told
};
/// `Prepare` came to nothing: a worker ended before its program was ready.
struct NotPrepared {
  Generation beside;
  std::string what;             ///< "exit code 3"
  std::int32_t exit_code = 0;   ///< 128 + n for signal n
  bool before_session = false;  ///< It never opened a session.
};
/// A worker of this node opened its session as a Job's: all workers of the job are. Said once per generation.
struct WorkersAreJob {
  Generation generation;
  bool stays = false;  ///< Processes of this program can be started beside a generation, and go on from one to the next.
};
/// Workers of this node were started in this generation and have not joined the world yet: the others may be waiting for them. Sent
/// when that takes long, again whenever it is another worker, and with `count` 0 once all of them have joined or ended.
struct WorkersStarting {
  Generation generation;
  std::uint32_t rank = 0;  ///< Of the first of them, in that generation
  std::uint32_t count = 0;
  Duration ago{};        ///< How long before this was sent they were started: clocks of nodes differ.
  bool opened = false;   ///< The first of them has opened its session, and has not asked for its peers.
  bool watched = false;  ///< This node ends them itself when they take too long (`--hang_timeout`).
};
/// A worker of this node cannot reach one of another node, which may live all the same: no packet of it comes, or no connection.
/// Not said of a peer that closed its connection.
struct PeerUnreachable {
  Generation generation;
  std::uint32_t rank = 0;  ///< In that generation
  std::uint32_t peer = 0;  ///< As well
  bool is_job = false;
  std::string what;  ///< In the worker's words
};
/// The verdict was read: nobody has to stay for this node any more. The last word of a node, as that was the coordinator's.
struct VerdictReceived {};
struct StoreCall {
  std::uint64_t worker = 0;  ///< Numbers the caller on its node.
  StoreRequest request;
};
struct StoreCallerGone {
  std::uint64_t worker = 0;
};
/// By the guard of an agent, on a stream of its own: the agent's process has ended and could not say so. Its workers were killed before.
/// The incarnation proves who speaks: an agent draws it, and tells its guard and its coordinator alone.
struct AgentEnded {
  Incarnation who;
  Generation last{};  ///< Newest generation that the agent had heard of; number 0: none
};
using NodeMessage =
    std::variant<Join, NodeAlive, Acknowledge, WorkerFailed, WorkersDone, JobFinished, Progress, Leave, StoreCall, StoreCallerGone,
                 VerdictReceived, MoreWorkers, WorkersAreJob, PeerUnreachable, WorkersStarting, AgentEnded, NotPrepared>;

// --- coordinator to agent ---------------------------------------------------------------------------------------

/// The coordinator refuses this node for good: its run, version or options differ. The failure names both values.
struct Refused {
  Failure failure;
};
/// The job is over: end what runs, exit with this code.
struct Verdict {
  std::int32_t exit_code = 0;
  std::string report;               ///< The first failure in the whole job and its cause; empty for success
  std::vector<WorkerDeath> deaths;  ///< Of workers, when one of them decided it: the root cause, then what failed after it
  Generation generation{};          ///< The newest of the job: workers of an older one have no part in its end. Number 0: not told
};
/// For whom the round waits, for people.
struct Waiting {
  std::string why;
  Generation running{};        ///< What runs meanwhile; number 0: nothing
  bool for_this_node = false;  ///< Others of `running`, which is a Job's, wait for workers of this node: see `WorkersStarting`.
  /// The end of the job is decided, and cannot be written to etcd yet. It does not count before that; but where no coordinator comes any more, a node ends by it.
  std::optional<Verdict> decided{};
};
/// One node of a generation, as the coordinator knows it.
struct Member {
  NodeId node;
  std::string address;
  std::uint32_t workers = 0;
  std::uint32_t base_rank = 0;
  std::uint16_t master_port = 0;
  RolePlace role{};
  friend bool operator==(const Member&, const Member&) = default;
};
/// The round is complete: start this node's workers. Its size does not depend on the number of nodes.
struct World {
  Generation generation;
  std::array<std::byte, 32> key{};  ///< The generation's secret
  Seat seat;                        ///< The receiver's
  std::string address;              ///< The receiver's, as its peers were told
  std::string master_address;       ///< Of the node with group rank 0
  std::uint16_t master_port = 0;
  RestartCounts restarts;
  std::string cause;                              ///< Why the generation before ended; empty at first
  RolePlace role{};                               ///< The receiver's
  std::optional<std::uint32_t> coordinated_by{};  ///< Group rank of the member whose own process coordinates. None: it is no member's
  bool takes_more = false;                        ///< Who coordinates heeds `MoreWorkers`. Earlier versions do not.
  friend bool operator==(const World&, const World&) = default;
};
/// A Job's generation runs, and this node joins it: it starts its workers now, as pending ones, and says when all of them are ready. It gets a place then.
/// So the others need not wait for the start of its workers.
struct Prepare {
  World beside;  ///< That generation, as if this node were the last of its members. It has no key: nobody acts for that generation with it.
};
/// Why a generation ended. The coordinator decides it; `Revoke` carries it to the nodes.
enum class EndCause : std::uint8_t {  // on the wire by number: never changed, never used again
  other = 0,                          ///< An older coordinator did not tell, or a newer one told what this version does not know.
  failure,                            ///< A worker ended by itself.
  loss,                               ///< A node was lost, or gave the generation up.
  leave,                              ///< A node left in order.
  growth,                             ///< The world grows: no member failed, so this costs no restart.
  hang,                               ///< Workers did not join the world in time (`start_timeout`).
  unreachable,                        ///< Two members cannot reach each other, though both reach the coordinator.
  stale,                              ///< The node came with a generation that is not this coordinator's newest.
};
inline constexpr EndCause end_cause_last = EndCause::stale;
/// The generation is over: end its workers, acknowledge, join again.
struct Revoke {
  Generation generation;
  Failure why;
  std::optional<EndCause> cause{};  ///< None: the coordinator is of a version that does not tell it.
};
/// `revoke.cause`; of an older coordinator it follows from the code of the failure.
[[nodiscard]] EndCause end_cause_of(const Revoke& revoke);
/// True when something went wrong: such an end counts as a restart of the job.
[[nodiscard]] constexpr bool is_failure(EndCause cause) {
  return cause != EndCause::leave && cause != EndCause::growth && cause != EndCause::stale;
}
/// The resumed node's generation still runs.
struct Resumed {
  Generation generation;
  bool fresh = false;  ///< This coordinator did not see it begin: its store knows nothing of what was put there before.
  std::optional<std::uint32_t> coordinated_by{};  ///< As in World, and now
};
struct StoreResult {
  std::uint64_t worker = 0;
  StoreReply reply;
};
using CoordinatorMessage = std::variant<Refused, Waiting, World, Revoke, Resumed, Verdict, StoreResult, Prepare>;

/// Why a connection could not be made, as the system says it: without the words that gRPC puts before it.
[[nodiscard]] std::string in_plain_words(std::string_view grpc_message);
/// Whether a connection that was up ended because the other end's system answered nothing any more: by gRPC's ping, by TCP's own limit, which is as long
/// and may come first, or because its host cannot be found on the network. A process that ends, or closes the connection, is no such case.
[[nodiscard]] bool tells_of_silence(std::string_view grpc_message);
/// A line that stands, to a coordinator that does not run.
constexpr std::string_view silent_coordinator = "nothing came from it";

}  // namespace elrun::inline v0
