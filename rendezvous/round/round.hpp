#pragma once
/// \file Round: who is in the world, and when it changes. The coordinator's one decision maker, a pure state machine:
/// events and time in, actions out. The rules are in README.md, in prose.

#include <cstdint>
#include <map>
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
#include "rendezvous/round/exclusion.hpp"
#include "rendezvous/round/failure_records.hpp"
#include "rendezvous/round/growth.hpp"
#include "rendezvous/round/node_table.hpp"
#include "rendezvous/round/recovery_window.hpp"
#include "rendezvous/round/restart_budget.hpp"
#include "rendezvous/round/root_cause.hpp"
#include "rendezvous/round/start_watch.hpp"
#include "rendezvous/round/status_messages.hpp"

namespace elrun::inline v0 {

constexpr std::int32_t exit_never_formed = 170;  ///< The first world did not come together by the join deadline.
constexpr std::int32_t exit_too_few = 172;       ///< Nodes were lost, and too few returned by the join deadline.

/// Once the job has succeeded, its coordinator stays this long for nodes that come late or thaw: they hear that it is over, and do not
/// begin it again. Not where as many nodes as there is room for have heard it.
constexpr Duration late_linger = 10s;
constexpr Duration progress_told_every = 60s;  ///< The log tells of steps this often, and of the first in each generation.
/// Where the others are fewer than the minimum, an excluded node is taken before its pause is over, but not before a node that is missing
/// had this long to come back (half of the join deadline, if that is less).
constexpr Duration exclusion_stays = 60s;
/// A worker died before its session, and it is not known yet whether the job is a Job, whose rules let the others go on: a
/// worker of theirs says so when its session is open. Waited for only where the others satisfy the minimum.
constexpr Duration kind_known_within = 10s;
/// From the first word of two members that cannot reach each other to the end of their generation: others may say so as well, and
/// both are to be heard of here.
constexpr Duration apart_gather = 2s;
constexpr std::size_t apart_max = 4096;        ///< Such pairs that are told apart, in one generation.
constexpr std::size_t refused_max = 16;        ///< Nodes that were refused and are remembered by name, and
constexpr std::size_t refused_text_max = 256;  ///< how much of the reason.
constexpr std::size_t former_max = 1024;       ///< Lost incarnations that are remembered, in all.
constexpr std::size_t replaced_max = 64;       ///< Replaced incarnations that are remembered, per node.
constexpr std::size_t claimants_max = 4;       ///< That wait for the name of a node that lives, per node.

/// Limits of what one may say; a generation's number leaves room above it for ever.
constexpr std::uint64_t generation_number_max = std::uint64_t{1} << 62;
/// So many generations at most may have begun where this coordinator did not see it: one each second for half a year. Who
/// tells of a later one is no node of this job, and must not use the numbers up.
constexpr std::uint64_t generation_jump_max = std::uint64_t{1} << 24;

struct Candidate;

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
  bool elected = false;                ///< So was the one before, and whoever ceases to be that lives on as a node like the others.
};

// --- events -----------------------------------------------------------------------------------------------------

struct StreamOpened {
  StreamNumber stream;
  bool in_process = false;  ///< It lives on the same loop: its silence means nothing.
};
struct StreamBroken {
  StreamNumber stream;
};
struct FromNode {
  StreamNumber stream;
  NodeMessage message;  ///< Calls to the store are not for the round.
};
/// The time of the last WakeAt has come.
struct RoundTick {};
using RoundEvent = std::variant<StreamOpened, StreamBroken, FromNode, RoundTick>;

// --- actions ----------------------------------------------------------------------------------------------------

struct SendTo {
  StreamNumber stream;
  CoordinatorMessage message;
};
/// After what was sent to it. The round forgets the stream at once and expects no StreamBroken.
struct CloseStream {
  StreamNumber stream;
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
  bool by_one = false;  ///< One node or stranger caused it, and may again.
};
using RoundAction = std::variant<SendTo, CloseStream, WakeAt, BeginGeneration, EndGeneration, HandOver, Say>;

/// One row of the round's deadlines: who is waited for or waits, how long, and what then.
struct RoundDeadline {
  std::string_view who;
  Instant at;
  std::string_view then;
};

class Round {
 public:
  explicit Round(RoundSetup setup);

  [[nodiscard]] std::vector<RoundAction> step(const RoundEvent& event, Instant now);

  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
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
  /// Another process that joined under the name of a node that has a stream. Whether the node lives is known soon.
  struct Claimant {
    StreamNumber stream;
    Join join;
    Instant since;
  };
  /// The incarnation of a member that was lost.
  struct Former {
    std::uint64_t incarnation = 0;
    StreamNumber newest{};
  };
  /// Members say that they cannot reach each other, though each of them reaches this coordinator.
  struct Apart {
    Instant since;    // the first word of it
    Instant look_at;  // whether both were heard of since
    std::set<ApartNodes> pairs;
    PeerUnreachable first;
    NodeId by;  // who said it
  };
  /// A worker died before its session, in a job of which nobody has said yet whether it is a Job.
  struct Unjudged {
    Instant until;
    NodeId node;
    WorkerFailed failed;
  };

  void on(const StreamOpened& event, Instant now);
  void on(const StreamBroken& event, Instant now);
  void on(const FromNode& event, Instant now);
  void on(const RoundTick& event, Instant now);
  void join(StreamNumber stream, const Join& join, Instant now);
  void admit(StreamNumber stream, Node& node, const Join& join, Instant now);
  void let_claim(StreamNumber stream, const Join& join, Instant now);
  void settle_claims(Instant now);
  void claim(Node& node, Instant now);
  [[nodiscard]] bool outdated(StreamNumber stream, const NodeId& id) const;
  void turn_away_outdated(StreamNumber stream, const Join& join);
  void replace(const NodeId& id, std::uint64_t incarnation);
  void refuse_replaced(StreamNumber stream, const NodeId& id);
  void is_over(const Node& node, const Generation& newest);
  void adopt(Instant now);
  void end_recovery(const std::string& why, Instant now);
  void said(Node& node, const NodeMessage& message, Instant now);
  [[nodiscard]] bool knows_the_end_of(const Node& node, const Generation& last) const;
  void worker_failed(Node& node, const WorkerFailed& failed, Instant now);
  void judge(const Member& member, const WorkerFailed& failed, Failure why, Instant now);

  // Nodes whose workers keep failing, round_exclude.cpp
  [[nodiscard]] bool others_can_go_on(const std::set<NodeId>& without) const;
  [[nodiscard]] bool put_off(const Member& member, const WorkerFailed& failed, Instant now);
  void judge_what_was_put_off(Instant now);
  void workers_are_job(Instant now);
  void workers_done_unseen(Instant now);
  void open_record(const Join& join, Instant now);
  void take_back_failure();
  void exclude(const NodeId& id, Instant now);
  void end_exclusion(const FailureRecords::Record& record, Instant now);
  void end_exclusions(Instant now);
  void lift_exclusions(Instant now);
  [[nodiscard]] std::optional<Instant> lift_at() const;
  [[nodiscard]] std::size_t excluded_here() const;

  // Members whose workers have not joined the world, round_start.cpp
  void note_starting(const NodeId& id, const WorkersStarting& said, Instant now);
  void judge_starting(Instant now);
  void tell_of_starting(Instant now);
  [[nodiscard]] bool others_wait_for_starting() const;
  [[nodiscard]] bool can_spare_starting() const;

  // Members that cannot reach each other, round_apart.cpp
  void note_apart(const Node& node, const PeerUnreachable& said, Instant now);
  void judge_apart(Instant now);
  void part(Instant now);
  void keep_out(const NodeId& id, std::string why, std::set<NodeId> apart_from, Instant now);
  void let_in(const NodeId& id, Instant now);
  void let_in_due(Instant now);
  void let_in_needed(Instant now);
  [[nodiscard]] bool heard_since(const NodeId& id, Instant then) const;
  [[nodiscard]] const Member& member_of(std::uint32_t rank) const;

  [[nodiscard]] bool is_kept_out(const NodeId& id, std::uint64_t incarnation) const;
  void note_kept_out(const NodeId& id, Instant now);
  [[nodiscard]] std::int32_t restart_limit() const { return budget_.limit(options().max_restarts); }
  void charge(EndCause cause, Failure why, std::int32_t exit_code, Instant now);
  [[nodiscard]] RecoveryWindow::JoinOf join_of() const;
  void refuse_misfit(StreamNumber stream, const NodeId& id, const std::string& why);
  void note_refused(const NodeId& id, const std::string& why);
  void tell_of_same_hints(const std::vector<Candidate>& candidates);
  void fail(Instant now);
  void leave(const NodeId& id, const std::string& why, Instant now);

  void settle(Instant now);
  void excuse(const NodeId& lost);
  void lose_the_silent(Instant now);
  void lose(const NodeId& id, const std::string& why, Instant now);
  void remove(const NodeId& id, bool close, Instant now);
  void revoke(EndCause cause, Failure why, Instant now);
  void grow(Instant now);
  void form(Instant now);
  void begin(std::vector<NodeId> chosen, Instant now);
  void give_up(Instant now);
  void decide(std::int32_t exit_code, std::string report, Instant now, std::vector<WorkerDeath> deaths = {});
  void explain(Instant now);
  void wake(Instant now);
  [[nodiscard]] World world_of(std::uint32_t group_rank, const Key256& key) const;
  [[nodiscard]] Key256 key() const;  ///< Of the newest generation
  [[nodiscard]] Seat seat_of(std::uint32_t group_rank) const;
  void note_own_place();

  [[nodiscard]] bool others_may_come() const;
  [[nodiscard]] bool only_own_node_is_here() const;
  void tell_of_linger(Instant now);
  [[nodiscard]] std::vector<std::string> contradictions(const Join& join) const;
  [[nodiscard]] bool runs() const { return !members_.empty() && !revoked_; }
  // Nodes without workers count as nodes, as they do for the schedulers that number them, but have no place in a world.
  [[nodiscard]] std::uint32_t less_observers(std::uint32_t nodes) const {
    return nodes > nodes_.observers() ? nodes - static_cast<std::uint32_t>(nodes_.observers()) : 1;
  }
  [[nodiscard]] std::uint32_t needed() const { return less_observers(options().nodes_min); }
  [[nodiscard]] std::uint32_t room() const { return less_observers(options().nodes_max); }
  [[nodiscard]] bool living_members_all_ready() const { return nodes_.late() == 0; }
  [[nodiscard]] bool all_done() const { return !members_.empty() && done_.size() == members_.size(); }
  [[nodiscard]] std::optional<Instant> growth_at() const;
  [[nodiscard]] Instant closes_at() const;
  [[nodiscard]] bool whoever_is_left_waits() const;
  [[nodiscard]] bool deserted(Instant now) const { return runs() && now < deserted_until_; }
  [[nodiscard]] StatusMessages::Reason reason(Instant now) const;
  [[nodiscard]] std::string missing() const;
  [[nodiscard]] const RoundOptions& options() const { return *options_; }

  void refuse(StreamNumber stream, Failure why);
  void send(const Node& node, CoordinatorMessage message);
  void send(StreamNumber stream, CoordinatorMessage message) { actions_.emplace_back(SendTo{stream, std::move(message)}); }
  void say(Level level, std::string text, bool by_one = false) { actions_.emplace_back(Say{level, std::move(text), by_one}); }

  RoundSetup setup_;
  std::optional<RoundOptions> options_;  // the first node's
  RunId run_;
  NodeTable nodes_;
  std::map<NodeId, std::set<std::uint64_t>> replaced_;
  std::map<NodeId, Former> former_;                    // lost members, until another incarnation joins under the name
  std::map<NodeId, std::vector<Claimant>> claimants_;  // the earliest first

  Generation generation_{};  // the newest; number 0: none yet
  std::uint64_t floor_ = 0;
  std::vector<Member> members_;             // of generation_
  std::uint64_t roster_ = 0;                // hash of members_
  std::optional<std::uint32_t> own_place_;  // among members_: of the node in this process
  bool own_node_left_ = false;              // the node in this process said Leave
  bool handed_over_ = false;                // HandOver was given
  std::optional<RecoveryWindow> recovery_;
  std::optional<Generation> ended_;  // the newest that nodes come from whose workers are gone; none was begun here
  std::uint32_t ended_nodes_ = 0;    // that it had
  Instant hold_until_{};             // a spare has heard of a generation that others may still run: they come first
  Instant deserted_until_{};         // every node's stream broke: members have this long to come back
  std::set<NodeId> done_;            // members whose workers all ended well
  Growth growth_;
  RootCause root_cause_;
  std::optional<Apart> apart_;  // of generation_, which is not over yet
  Exclusions exclusions_;
  bool stepped_ = false;  // a step was decided in generation_
  FailureRecords failures_;
  std::optional<Unjudged> unjudged_;
  std::set<NodeId> unseen_;  // of done_: no worker of theirs ever opened a session
  StartWatch start_watch_;
  std::map<NodeId, std::string> lost_;  // members that were lost since generation_ began, and how
  bool revoked_ = false;
  Instant began_{};
  Instant return_by_{};                   // revoked: living members are back by then, or lost
  std::optional<Instant> enough_since_;   // forming: when the minimum was reached
  bool lift_told_ = false;                // forming: that an excluded node is taken if nobody else comes
  std::optional<Instant> forming_since_;  // since when nodes wait for a generation

  RestartBudget budget_;
  std::map<NodeId, std::string> refused_;  // since generation_ began, and why
  bool same_hints_told_ = false;
  std::optional<Instant> progress_told_;  // in this generation
  std::string cause_;                     // why the generation before ended
  std::optional<Verdict> verdict_;
  Instant verdict_at_{};
  std::set<NodeId> told_;  // nodes that have heard it
  bool linger_told_ = false;
  StatusMessages status_;
  Instant beat_at_{};
  std::optional<Instant> wake_;

  std::vector<RoundAction> actions_;  // of the step under way
};

}  // namespace elrun::inline v0
