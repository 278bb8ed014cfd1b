#pragma once
/// \file Round: who is in the world, and when it changes. The coordinator's one decision maker, a pure state machine:
/// events and time in, actions out. The rules are in README.md, in prose.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/digest.hpp"
#include "lib/base/log.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0 {

/// One stream of one node, numbered by the shell; a number is never used again.
using StreamNumber = Strong<struct StreamNumberTag, std::uint64_t>;

constexpr std::int32_t exit_never_formed = 170;  ///< The first world did not come together by the join deadline.
constexpr std::int32_t exit_too_few = 172;       ///< Nodes were lost, and too few returned by the join deadline.
constexpr std::int32_t job_restarts = 3;         ///< Of a Job program, when `--max_restarts` is not given.

/// A running generation is not ended for a newcomer before it has run this long: 1 s, doubled with each growth that no
/// decided step has followed, 32 s at most, so that a node that comes and goes does not stop the others from working.
constexpr Duration growth_settle = 1s;
constexpr std::uint32_t growth_doublings_max = 5;
/// Newcomers of this long are taken in together.
constexpr Duration growth_gather = 250ms;
constexpr std::size_t replaced_max = 64;  ///< Replaced incarnations that are remembered, per node.

/// Limits of what one may say; a generation's number leaves room above it for ever.
constexpr std::uint64_t generation_number_max = std::uint64_t{1} << 62;

/// What a round is born with. Randomness comes in here, and nowhere else.
struct RoundSetup {
  RunId run;              ///< Empty: taken from the first node
  std::string version;    ///< Of this coordinator; nodes of another major version are refused
  Timeouts timeouts{};
  Lineage lineage{};      ///< Random
  Key256 secret{};        ///< Random; each generation's key is derived from it
  std::uint64_t generation_floor = 0;  ///< The first generation's number is above it
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
/// The store serves this generation from now on.
struct BeginGeneration {
  Generation generation;
};
/// The store serves nobody until the next one.
struct EndGeneration {
  std::string why;
};
struct Say {
  Level level;
  std::string text;
};
using RoundAction = std::variant<SendTo, CloseStream, WakeAt, BeginGeneration, EndGeneration, Say>;

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

 private:
  struct Stream {
    std::optional<NodeId> node;  // none before Join and after Leave
    bool in_process = false;
    Instant heard;
  };
  struct Node {
    Join join;
    std::optional<StreamNumber> stream;  // none: broken, in its grace
    Instant broken{};                    // when
    Instant arrived{};                   // when it became a newcomer; decides who of the spares is next
    bool member = false;                 // of generation_
    bool owes = false;                   // has to acknowledge the end of generation_
    bool ready = false;                  // waits for a world
    std::string told;                    // what it waits for, as told last
  };
  /// What a waiting node is told: `until` is an instant, so that the text changes only when the reason does.
  struct Reason {
    std::string why;
    std::optional<Instant> until;
    std::string then;
  };
  using Nodes = std::map<NodeId, Node>;

  void on(const StreamOpened& event, Instant now);
  void on(const StreamBroken& event, Instant now);
  void on(const FromNode& event, Instant now);
  void on(const RoundTick& event, Instant now);
  void join(StreamNumber stream, const Join& join, Instant now);
  void admit(StreamNumber stream, Node& node, const Join& join, Instant now);
  void said(Node& node, const NodeMessage& message, Instant now);
  void worker_failed(Node& node, const WorkerFailed& failed, Instant now);
  void leave(const NodeId& id, const std::string& why, Instant now);

  void settle(Instant now);
  void lose_the_silent(Instant now);
  void lose(const NodeId& id, const std::string& why, Instant now);
  void remove(Nodes::iterator node, bool close);
  void revoke(Failure why, bool failed, Instant now);
  void grow(Instant now);
  void form(Instant now);
  void begin(std::vector<NodeId> chosen, Instant now);
  void give_up(Instant now);
  void decide(std::int32_t exit_code, std::string report, Instant now);
  void explain(Instant now);
  void wake(Instant now);

  [[nodiscard]] std::vector<std::string> contradictions(const Join& join) const;
  [[nodiscard]] bool runs() const { return !members_.empty() && !revoked_; }
  [[nodiscard]] bool living_members_all_ready() const;
  [[nodiscard]] std::size_t ready_count() const;
  [[nodiscard]] bool all_done() const;
  [[nodiscard]] std::optional<Instant> growth_at() const;
  [[nodiscard]] std::optional<Instant> gone_at(const Node& node) const;
  [[nodiscard]] Reason reason() const;
  [[nodiscard]] std::string missing() const;
  [[nodiscard]] const RoundOptions& options() const { return *options_; }

  void refuse(StreamNumber stream, Failure why);
  void send(const Node& node, CoordinatorMessage message);
  void send(StreamNumber stream, CoordinatorMessage message) { actions_.push_back(SendTo{stream, std::move(message)}); }
  void say(Level level, std::string text) { actions_.push_back(Say{level, std::move(text)}); }

  RoundSetup setup_;
  std::optional<RoundOptions> options_;  // the first node's
  RunId run_;
  std::map<StreamNumber, Stream> streams_;
  Nodes nodes_;
  std::map<NodeId, std::set<std::uint64_t>> replaced_;

  Generation generation_{};       // the newest; number 0: none yet
  std::uint64_t floor_ = 0;
  std::vector<Member> members_;   // of generation_
  std::set<NodeId> done_;         // members whose workers all ended well
  std::map<NodeId, std::string> lost_;  // members that were lost since generation_ began, and how
  bool revoked_ = false;
  Instant began_{};
  Instant return_by_{};           // revoked: living members are back by then, or lost
  std::optional<Instant> enough_since_;   // forming: when the minimum was reached
  std::optional<Instant> forming_since_;  // since when nodes wait for a generation

  std::uint32_t restart_count_ = 0;
  std::int32_t restarts_used_ = 0;
  bool progressed_ = false;       // a step that was never decided before was, since the last failure of a worker
  std::uint64_t newest_step_ = 0;  // of the whole job
  std::uint32_t growths_ = 0;     // since a step was decided
  std::string cause_;             // why the generation before ended
  std::optional<Verdict> verdict_;
  Instant verdict_at_{};
  std::optional<Instant> wake_;

  std::vector<RoundAction> actions_;  // of the step under way
};

}  // namespace elrun::inline v0
