#pragma once
/// \file What the checkers see: what the actors of a simulation do, never what they think.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/messages.hpp"

namespace elrun::sim {

/// A process of the simulation: an agent, a coordinator or a worker. Numbers are never used again.
using ProcessId = Strong<struct ProcessIdTag, std::uint32_t>;
/// Generations in an order, for maps.
using GenerationKey = std::pair<std::uint64_t, Lineage>;
inline GenerationKey key_of(const Generation& g) { return {g.number, g.lineage}; }

/// What one node was told of a generation: the one place that knows the fields of `World`.
struct Told {
  Generation generation;
  std::uint32_t group_rank = 0, base_rank = 0, nodes = 0, world_size = 0;
  std::uint64_t roster = 0;  ///< Hash of all members
  std::string master_address;
  std::uint16_t master_port = 0;
  std::array<std::byte, 32> key{};
};

// --- agents -------------------------------------------------------------------------------------------------------

struct AgentStarted {
  ProcessId agent;
  Incarnation who;
  std::uint32_t workers = 0;
};
/// The agent took this world: its workers are started next.
struct WorldTaken {
  ProcessId agent;
  Incarnation who;
  std::uint32_t workers = 0;
  Told told;
};
/// By Acknowledge, or by a Join that resumes nothing.
struct Acknowledged {
  ProcessId agent;
  Incarnation who;
  Generation generation;
};
/// The coordinator said something that ends workers or the agent.
struct AgentReceived {
  enum class What { revoke, verdict, refused, out_of_contact, asked_to_leave };
  ProcessId agent;
  Incarnation who;
  What what;
  Generation generation{};     ///< Of revoke
  std::int32_t exit_code = 0;  ///< Of verdict
  std::string why;
};
struct AgentFinished {
  ProcessId agent;
  Incarnation who;
  std::int32_t exit_code = 0;
  bool by_verdict = false;
  bool member_ever = false;
  std::string why;
};
/// Crashed, with or without its host.
struct AgentCrashed {
  ProcessId agent;
  Incarnation who;
};
/// A coordinator gave an agent up that had a stream to it, because a guard said that the agent has ended.
struct LostByItsGuard {
  ProcessId coordinator;
  Incarnation who;
  bool alive = false;
};
/// A second agent runs under a name that another one still has.
struct NameTakenOver {
  NodeId node;
};

// --- workers ------------------------------------------------------------------------------------------------------

struct WorkerStarted {
  ProcessId worker, agent;
  Incarnation who;
  Generation generation;
  std::uint32_t rank = 0, world = 0;
};
struct WorkerGone {
  ProcessId worker;
};
/// A signal that may end a worker that still runs.
struct WorkerSignalled {
  ProcessId worker, agent;
  Generation generation;
  int number = 0;
};
struct WorkerFailedByItself {
  ProcessId worker;
  Generation generation;
};
struct StepWasDecided {
  ProcessId worker;
  Incarnation who;
  Generation generation;
  std::uint64_t step = 0;
};
struct StoreCalled {
  ProcessId worker;
  Generation generation;
  StoreRequest request;
};
struct StoreAnswered {
  ProcessId worker, coordinator;
  Generation generation;
  StoreRequest request;
  StoreReply reply;
};

// --- coordinators -------------------------------------------------------------------------------------------------

struct CoordinatorStarted {
  ProcessId coordinator;
  Lineage lineage;
  std::uint64_t floor = 0;
};
struct GenerationBegan {
  ProcessId coordinator;
  Lineage lineage;  ///< Of the coordinator; of the generation too, unless it was adopted.
  Generation generation;
  std::vector<NodeId> nodes;
  std::vector<Incarnation> members;  ///< Of those that are told: one whose stream broke a moment ago may be back in time.
  bool adopted = false;
  bool named = false;  ///< The endpoint's name leads to this coordinator: its members did not move on to another.
};
struct GenerationRevoked {
  ProcessId coordinator;
  Generation generation;
  std::string why;
};
/// The store answered a call, while it served `serving`.
struct StoreServed {
  ProcessId coordinator;
  std::optional<Generation> serving;
  StoreRequest request;
  StoreReply reply;
};
struct VerdictGiven {
  ProcessId coordinator;
  std::int32_t exit_code = 0;
  std::string report;
  std::vector<ProcessId> connected;  ///< Agents with an unbroken stream to it, when nothing can happen to it any more
};

// --- pairs that are cut from each other -----------------------------------------------------------------------------

struct PairIsCut {
  NodeId a, b;
  Instant until;
};
/// Each second.
struct CutsLookedAt {
  std::vector<NodeId> alive;
  bool over = false;  ///< The job is done, as a worker or an agent knows.
};

// --- jobs ---------------------------------------------------------------------------------------------------------

/// A program has taken its place in a generation.
struct PlaceTaken {
  ProcessId worker;
  Generation generation;
  std::uint32_t rank = 0, world = 0;
  NodeId node;
};
struct StepHandedOut {
  ProcessId worker;
  Generation generation;
  std::uint64_t step = 0;
  std::uint64_t begun = 0;             ///< Host state: the steps that this state has begun.
  std::vector<std::uint64_t> weights;  ///< By unit, their hash; none where they are sharded.
};
struct WeightsRead {
  ProcessId worker;
  std::uint64_t step = 0;
  std::uint32_t unit = 0;
  std::uint64_t hash = 0;
};
/// To its end, in a generation that had not ended.
struct SlotRun {
  ProcessId worker;
  Generation generation;
  std::uint64_t step = 0;
  std::uint32_t slot = 0;
  std::vector<std::uint64_t> samples;
};
/// The state is now that of so many decided steps.
struct StepApplied {
  ProcessId worker;
  Generation generation;
  std::uint64_t steps = 0;
};
/// `apply` came back with a decision.
struct StepReported {
  ProcessId worker;
  std::uint64_t step = 0;
  float loss = 0, norm = 0;
  std::uint64_t tokens = 0;
};
/// A program has said that its job is over.
struct JobSaidOver {
  ProcessId worker;
};
/// A checkpoint is acknowledged, by whom it was committed or who heard so.
struct CheckpointAcknowledged {
  ProcessId by;
  std::uint64_t fence = 0, step = 0;
  bool is_committed = false;  ///< Its COMMIT is there at that moment.
};
/// A worker is about to claim this fence for its generation. Where another one has it by then, it claims a later one.
struct FenceClaimed {
  ProcessId worker;
  Generation generation;
  std::uint64_t fence = 0;
};
/// Its members go on from a checkpoint; step 0: there is none.
struct WentOn {
  ProcessId worker;
  std::uint64_t step = 0;
  bool passes_over = false;  ///< A newer one, and says so.
};
/// They crashed at one action: one worker, or all of a node.
struct DiedTogether {
  std::vector<ProcessId> workers;
};
struct JobEnded {
  ProcessId worker;
  std::uint64_t steps = 0, state = 0;
};

// --- writers of checkpoints ---------------------------------------------------------------------------------------

struct SaveStarted {
  ProcessId writer;
  std::uint32_t root = 0;
  std::uint64_t fence = 0, step = 0;
  std::uint32_t rank = 0;
};
/// Its part is written and its outcome is known.
struct SaveOver {
  ProcessId writer;
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
  bool is_unchanged = true;  ///< The slot's data, since the save began
  bool has_failed = false;
};
/// The line of a worker is closed, whose slot is sealed.
struct SealedSlotLeft {
  ProcessId writer;
  std::uint32_t root = 0;
  std::uint64_t fence = 0, step = 0;
  std::uint32_t rank = 0;
};
/// The line of a worker is closed, whose slot is being filled.
struct FillingSlotLeft {
  ProcessId writer;
  std::uint32_t root = 0;
  std::uint64_t fence = 0, step = 0;
  std::uint32_t rank = 0;
};
/// The writers of the other ranks are told that this part never comes.
struct PartGivenUp {
  ProcessId writer;
  std::uint32_t root = 0;
  std::uint64_t fence = 0, step = 0;
  std::uint32_t rank = 0;
};
/// A worker is told that no save is under way; so many are.
struct SettledReported {
  ProcessId writer;
  std::uint64_t saves = 0;
};
/// After each event.
struct SlotsHeld {
  ProcessId writer;
  std::uint64_t slots = 0;
  std::uint32_t workers = 0;  ///< Of its node
};

}  // namespace elrun::sim
