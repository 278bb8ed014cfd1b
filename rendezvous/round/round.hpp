#pragma once
/// \file Round: who is in the world, and when it changes. The coordinator's one decision maker, a pure state machine:
/// events and time in, actions out. The rules are in README.md, in prose.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/digest.hpp"
#include "lib/base/log_line.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/earlier_generations.hpp"
#include "rendezvous/round/ended_agents.hpp"
#include "rendezvous/round/excluded_nodes.hpp"
#include "rendezvous/round/forming.hpp"
#include "rendezvous/round/generation_state.hpp"
#include "rendezvous/round/growth.hpp"
#include "rendezvous/round/job_terms.hpp"
#include "rendezvous/round/node_names.hpp"
#include "rendezvous/round/node_table.hpp"
#include "rendezvous/round/recovery_window.hpp"
#include "rendezvous/round/restart_budget.hpp"
#include "rendezvous/round/status_messages.hpp"
#include "rendezvous/round/succession.hpp"
#include "rendezvous/round/verdict_delivery.hpp"
#include "rendezvous/round/wake_up.hpp"

namespace elrun::inline v0 {

constexpr std::int32_t exit_never_formed = 170;  ///< The first world did not come together by the join deadline.
constexpr std::int32_t exit_too_few = 172;       ///< Nodes were lost, and too few returned by the join deadline.

/// What a round is born with. Randomness comes in here, and nowhere else.
struct RoundSetup {
  RunId run;                                   ///< Empty: taken from the first node
  std::uint32_t nodes_min = 0, nodes_max = 0;  ///< 0: taken from the first node
  std::string version;                         ///< Of this coordinator; nodes of another major version are refused
  Timeouts timeouts{};
  Lineage lineage{};                   ///< Random
  Key256 secret{};                     ///< Random; each generation's key is derived from it
  std::uint64_t generation_floor = 0;  ///< The first generation's number is above it
  bool floor_may_run = false;          ///< Another coordinator began that generation, and its members may be on their way here.
  bool elected = false;                ///< This job's coordinators are elected. One that is no longer elected goes on as an ordinary node.
};

// --- events -----------------------------------------------------------------------------------------------------

struct StreamOpened {
  StreamNumber stream;
  bool in_process = false;  ///< It lives on the same loop: its silence means nothing.
  std::string from{};       ///< The literal address that it comes from, as this host sees it; empty: not known
};
struct StreamBroken {
  StreamNumber stream;
};
struct FromNode {
  StreamNumber stream;
  NodeMessage message;  ///< Calls to the store are not for the round.
};
/// On a stream of its own, which the round knows nothing of.
struct FromGuard {
  AgentEnded ended;
};
/// The answer to AskHost, where that process has ended. There is none where it lives, or where nobody knows.
struct FromHost {
  Incarnation ended;
};
/// The time of the last WakeAt has come.
struct RoundTick {};
using RoundEvent = std::variant<StreamOpened, StreamBroken, FromNode, FromGuard, FromHost, RoundTick>;

// --- actions ----------------------------------------------------------------------------------------------------

struct SendTo {
  StreamNumber stream;
  CoordinatorMessage message;
};
/// After what was sent to it. The round forgets the stream at once and expects no StreamBroken.
struct CloseStream {
  StreamNumber stream;
};
/// The stream of this process broke. A connection to its port, which it held until its end, shows whether it has ended: FromHost.
struct AskHost {
  Incarnation who;
  LivenessPort port;
};
/// The one next Tick; it replaces the one before.
struct WakeAt {
  Instant at;
};
/// The store serves this generation from now on. Nothing of it may be told to anyone before it is on record, where there
/// is one.
struct BeginGeneration {
  Generation generation;
  std::vector<Member> members;
  bool adopted = false;  ///< It ran before this coordinator did.
};
/// The store serves nobody until the next one.
struct EndGeneration {
  std::string why;
};
/// Where coordinators are elected: the node in this process leaves and ends soon, and every other one is ready for the next
/// generation. Another coordinator begins it. If this one did, it could end between writing it down and telling it.
struct HandOver {};
struct Say {
  Level level;
  std::string text;
  bool by_one = false;  ///< One node, or a connection that is not authenticated, caused it, and may again.
};
using RoundAction = std::variant<SendTo, CloseStream, AskHost, WakeAt, BeginGeneration, EndGeneration, HandOver, Say>;

/// Conducts: each event goes to the part that it concerns, and `advance` asks the parts, in one fixed order, what follows. The parts own their
/// state and decide; this class performs what concerns several of them, and says and sends it.
///
/// It has more than 25 methods, because there is one for each kind of event, for each conclusion and for each end of a generation; most are a
/// few lines. Each of its fields but the first and the last
/// three is a part with a header and unit cases of its own.
class Round {
 public:
  explicit Round(RoundSetup setup);

  [[nodiscard]] std::vector<RoundAction> step(const RoundEvent& event, Instant now);

  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_.verdict(); }
  /// A verdict was given, and every node that is still there has it, or the linger is over.
  [[nodiscard]] bool may_end(Instant now) const;
  /// True for the stream of a node that has joined: others may not call the store.
  [[nodiscard]] bool joined(StreamNumber stream) const;
  /// The generation that runs, if one does.
  [[nodiscard]] std::optional<Generation> running() const;
  /// All deadlines that are not due yet. The shell is woken at the first of them.
  [[nodiscard]] std::vector<RoundDeadline> deadlines(Instant now) const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  using Node = NodeTable::Node;

  void on(const StreamOpened& event, Instant now);
  void on(const StreamBroken& event, Instant now);
  void on(const FromNode& event, Instant now);
  void on(const FromGuard& event, Instant now);
  void on(const FromHost& event, Instant now);
  void on(const RoundTick& event, Instant now);
  void ask_host(StreamNumber stream);
  void end_stream(StreamNumber stream, Instant now);
  void said(Node& node, const NodeMessage& message, Instant now);
  [[nodiscard]] bool is_of_node_here(const AgentEnded& ended) const;
  [[nodiscard]] bool knows_the_end_of(const Node& node, const Generation& last) const;
  void leave(const NodeId& id, const std::string& why, Instant now);

  // Failures of workers, and what they cost; round.cpp, round_exclude.cpp
  void worker_failed(Node& node, const WorkerFailed& failed, Instant now);
  [[nodiscard]] bool put_off(const Member& member, const WorkerFailed& failed, Instant now);
  [[nodiscard]] bool others_have_trained(const NodeId& id) const;
  void judge(const Member& member, const WorkerFailed& failed, Failure why, Instant now);
  void judge_what_was_put_off(Instant now);
  void judge_done_before_session(Instant now);
  void charge(EndCause cause, Failure why, std::int32_t exit_code, Instant now, bool before_return = false);
  void excuse(const NodeId& lost);
  void exclude(const NodeId& id, Instant now, bool by_configuration = false);
  [[nodiscard]] std::optional<Instant> lift_at() const;
  void lift_exclusions(Instant now);

  // Members whose workers have not joined the world, round_start.cpp
  [[nodiscard]] bool others_wait_for_starting() const;
  void judge_starting(Instant now);

  // Newcomers that start their workers before they get a place, round_prepare.cpp
  [[nodiscard]] bool is_unprepared(const Node& node) const;
  [[nodiscard]] std::vector<NodeId> ready_newcomers() const;
  [[nodiscard]] Instant came_at(const Node& node) const;
  void prepare_newcomers(Instant now);
  void prepare(Node& node, Instant now);
  void prepared(Node& node, Instant now);
  void not_prepared(Node& node, const NotPrepared& said, Instant now);
  void end_late_preparations(Instant now);
  void end_preparation(Node& node);
  void exclude_unprepared(const NodeId& id, Instant now);
  /// By then its agent has ended workers that were not ready within `start_timeout`.
  [[nodiscard]] Instant prepared_by(const Node& node) const {
    return node.preparation.since + setup_.timeouts.session + workers_end_within(node.join);
  }

  // Members that cannot reach each other, round_apart.cpp
  void note_unreachable(const NodeId& id, const PeerUnreachable& said, Instant now);
  void separate_unreachable(Instant now);
  void let_in(const NodeId& id, Instant now);
  void let_in_needed(Instant now);

  // Nodes that join, round_join.cpp
  void join(StreamNumber stream, const Join& join, Instant now);
  void let_claim(StreamNumber stream, const Join& join, Instant now);
  void resolve_claims(Instant now);
  void take(StreamNumber stream, const Join& join, Instant now);
  void admit(StreamNumber stream, Node& node, const Join& join, Instant now);

  // A generation that another coordinator began, round_join.cpp
  void claim(Node& node, Instant now);
  [[nodiscard]] RecoveryWindow::JoinOf join_of() const;
  void adopt(Instant now);
  void end_recovery(const std::string& why, Instant now);
  void is_over(const Node& node, const Generation& newest);

  // Conclusions, round_advance.cpp
  void excuse_stall(const Stall& stall);
  void advance(Instant now);
  void lose_nodes(Instant now);
  void lose(const NodeId& id, const std::string& why, Instant now);
  void remove(const NodeId& id, bool close, Instant now);
  void revoke(EndCause cause, Failure why, Instant now);
  [[nodiscard]] std::optional<Instant> growth_at() const;
  void grow(Instant now);
  /// Workers are asked to end, then killed. A node that is still silent about it after all that is not coming back. The least that each node has: one
  /// whose own grace is longer does as its people said.
  [[nodiscard]] Duration workers_end_within() const {
    return setup_.timeouts.revocation + setup_.timeouts.stop_grace + setup_.timeouts.heartbeat_limit;
  }
  [[nodiscard]] Duration workers_end_within(const Join& join) const {
    return workers_end_within() + longer_grace(join, setup_.timeouts.stop_grace);
  }
  [[nodiscard]] Instant closes_at() const;
  void form(Instant now);
  [[nodiscard]] bool another_may_coordinate() const;
  void begin(const std::vector<NodeId>& chosen, Instant now);
  void enter(const Generation& generation, std::vector<Member> members, bool adopted, Instant now);
  [[nodiscard]] World world_of(std::uint32_t group_rank, const Key256& key) const;
  [[nodiscard]] Key256 key() const;  ///< Of the newest generation
  void give_up(Instant now);
  void fail(Instant now);
  void decide(std::int32_t exit_code, std::string report, Instant now, std::vector<WorkerDeath> deaths = {});

  [[nodiscard]] const GenerationState& generation() const { return current_.state; }  ///< The newest
  [[nodiscard]] const RoundOptions& options() const { return terms_.options(); }
  // Nodes without workers count as nodes, as they do for the schedulers that number them, but have no place in a world.
  [[nodiscard]] std::uint32_t needed() const { return less_observers(options().nodes_min); }
  [[nodiscard]] std::uint32_t room() const { return less_observers(options().nodes_max); }
  [[nodiscard]] std::uint32_t less_observers(std::uint32_t nodes) const {
    return nodes > nodes_.observers() ? nodes - static_cast<std::uint32_t>(nodes_.observers()) : 1;
  }
  [[nodiscard]] bool members_are_ready() const { return nodes_.late() == 0; }
  /// Nodes that are here, and have a place if one is given now or when they are prepared, which has a deadline of its own.
  [[nodiscard]] std::size_t in_sight() const { return nodes_.waiting() + nodes_.coming(); }

  // What is told, round_tell.cpp
  void explain(Instant now);
  [[nodiscard]] StatusMessages::Reason reason(Instant now) const;
  [[nodiscard]] std::string missing() const;
  void refuse(StreamNumber stream, Failure why);
  void tell_members(const std::string& why, const std::set<NodeId>& waited_for = {});
  void send(const Node& node, CoordinatorMessage message);
  void send(StreamNumber stream, CoordinatorMessage message) { actions_.emplace_back(SendTo{stream, std::move(message)}); }
  void say(Level level, std::string text, bool by_one = false) { actions_.emplace_back(Say{level, std::move(text), by_one}); }

  RoundSetup setup_;
  JobTerms terms_;
  NodeTable nodes_;
  NodeNames names_;
  EndedAgents ended_;
  ExcludedNodes excluded_;
  EarlierGenerations earlier_;
  std::optional<RecoveryWindow> recovery_;  // there while a generation of another coordinator may go on here
  Forming forming_;
  CurrentGeneration current_;
  Growth growth_;
  RestartBudget budget_;
  VerdictDelivery verdict_;
  Succession succession_;
  StatusMessages status_;
  WakeUp wake_up_;

  bool newcomers_prepare_ = false;  // the program is a Job, whose libelrun can wait for a place
  std::string cause_;               // why the generation before ended
  bool same_hints_told_ = false;
  std::vector<RoundAction> actions_;  // of the step under way
};

}  // namespace elrun::inline v0
