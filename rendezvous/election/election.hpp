#pragma once
/// \file Election: which agent of a job coordinates, decided through etcd. One agent's part in it, a pure state machine:
/// events and time in, actions out.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/philox.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/log_line.hpp"

namespace elrun::inline v0 {

using Revision = Strong<struct RevisionTag, std::int64_t>;  ///< etcd's count of writes
using LeaseId = Strong<struct LeaseIdTag, std::int64_t>;    ///< 0: none

struct Lease {
  LeaseId id;
  Duration length;
};

/// The leader key, as etcd has it.
struct Leader {
  Revision created;  ///< Unique within one etcd. An etcd that lost its data counts from the start again.
  LeaseId
      lease;  ///< etcd deletes the key when this expires; 0: a person made it, or a tool that restores keys, and nobody coordinates. Ids come from etcd's clock, so they differ even after etcd lost its data.
  std::string address;  ///< HOST:PORT of the coordinator; empty: elected, but not serving yet
  friend bool operator==(const Leader&, const Leader&) = default;
  [[nodiscard]] bool is_same_leadership(const Leader& other) const { return created == other.created && lease == other.lease; }
};

/// `leader` is there while an agent coordinates; `state` is the newest generation that was ever begun.
struct ElectionKeys {
  explicit ElectionKeys(const RunId& run) : leader{"/elrun/" + run.value() + "/leader"}, state{"/elrun/" + run.value() + "/state"} {}
  std::string leader, state;
};

/// No agent writes a larger number to etcd: there must be room above it.
constexpr std::uint64_t state_number_max = std::uint64_t{1} << 62;

/// The value of `state`: `12 89ab0123...`, the number and the lineage.
[[nodiscard]] std::string state_text(const Generation& generation);
[[nodiscard]] Result<Generation> generation_from_state(std::string_view text);

/// An agent that finds no leader waits for up to this before it campaigns, so that not all of a large job do at once.
constexpr Duration campaign_jitter = 200ms;
/// An agent without a coordinator looks at the leader key this often, half of it by chance.
constexpr Duration look_interval = 500ms;
/// When etcd does not answer: doubled at each failure, half of it by chance.
constexpr Duration etcd_backoff_min = 50ms, etcd_backoff_max = 2s;
/// How long an elected agent that could not open its service stays out of elections.
constexpr Duration campaign_pause = 10s;

struct ElectionOptions {
  bool campaigns = true;  ///< It may coordinate.
  Duration lease = 5s;
  std::uint64_t seed = 0;  ///< Of all that is left to chance.
};

namespace election {

// --- events. An action marked * is a call to etcd; exactly one event marked * answers it --------------------------

struct Begin {};
/// The line to the coordinator that is followed.
struct LineUp {};
struct LineDown {};
struct Found {  // *
  std::optional<Leader> leader;
};
struct Granted {  // *
  Lease lease;
};
/// How the campaign ended: the leader key and the state as they are now.
struct Counted {  // *
  std::optional<Leader> leader;
  std::optional<std::string> state;
};
struct Published {  // *
  bool still_leader = false;
};
struct Kept {     // *
  Duration left;  ///< 0: the lease is gone
};
struct Unanswered {  // *
  std::string why;
};
/// In answer to Lead.
struct Serving {
  std::string address;
};
struct CannotServe {
  std::string why;
};
/// The coordinator asked for a write to etcd.
struct WriteBegan {};
/// etcd confirmed it.
struct WriteDone {};
/// etcd refused the write: the leader key is not this agent's any more.
struct WriteRefused {};
struct Tick {};
/// The agent leaves the job and will end when its workers have: it campaigns no more. One that leads goes on until it resigns.
struct Withdraw {};
/// The agent is about to end.
struct Resign {};
using Event = std::variant<Begin, LineUp, LineDown, Found, Granted, Counted, Published, Kept, Unanswered, Serving, CannotServe, WriteBegan,
                           WriteDone, WriteRefused, Tick, Withdraw, Resign>;

// --- actions --------------------------------------------------------------------------------------------------------

struct Look {};  // *
struct Grant {   // *
  Duration lease;
};
/// Makes the leader key, without an address, if there is none; reads it and the state.
struct Campaign {  // *
  LeaseId lease;
};
/// Writes the address into the leader key if it is still the one of `created` and `lease`.
struct Publish {  // *
  Revision created;
  LeaseId lease;
  std::string address;
};
struct KeepAlive {  // *
  LeaseId lease;
};
/// Best effort: nothing depends on its answer.
struct Revoke {
  LeaseId lease;
};
/// There is a coordinator: connect to it.
struct Follow {
  std::string address;
};
/// This agent coordinates: open the service, and begin no generation up to `generation_floor`.
struct Lead {
  Revision created;
  LeaseId lease;
  std::uint64_t generation_floor = 0;
};
/// This agent coordinates no longer: end all streams at once, without a verdict.
struct StepDown {
  std::string why;
};
/// Why there is no coordinator, for people; once per change.
struct Explain {
  std::string why;
};
struct Say {
  Level level = Level::info;
  std::string text;
};
using Action = std::variant<Look, Grant, Campaign, Publish, KeepAlive, Revoke, Follow, Lead, StepDown, Explain, Say>;

}  // namespace election

/// When etcd is asked next. One call is under way at most; its answer decides what comes next. Pure.
class EtcdCalls {
 public:
  explicit EtcdCalls(std::uint64_t seed) : rng_{seed} {}

  void begin(Instant now) {
    under_way_ = true, begun_at_ = now, next_at_.reset();
    if (!unanswered_since_) unanswered_since_ = now;
  }
  /// Any answer has come, or the word that there is none.
  void end() { under_way_ = false; }
  [[nodiscard]] bool under_way() const { return under_way_; }
  [[nodiscard]] Instant begun_at() const { return begun_at_; }

  void plan(Instant at) { next_at_ = at; }
  void plan_nothing() { next_at_.reset(); }
  /// When the next call is due. Nothing while one is under way, or none is planned.
  [[nodiscard]] std::optional<Instant> next_at() const { return under_way_ ? std::nullopt : next_at_; }

  /// It answers: the next failure waits for the shortest time again.
  void succeeded() { backoff_ = etcd_backoff_min, unanswered_since_.reset(); }
  /// When the first of the calls began that etcd has left without an answer since its last one. None: it answered the last call.
  [[nodiscard]] std::optional<Instant> unanswered_since() const { return unanswered_since_; }
  /// How long to wait after a failure: longer with each one in a row.
  [[nodiscard]] Duration after_failure();
  [[nodiscard]] Duration half_by_chance(Duration most);

 private:
  Rng rng_;
  bool under_way_ = false;
  Instant begun_at_{};
  std::optional<Instant> next_at_, unanswered_since_;
  Duration backoff_ = etcd_backoff_min;
};

/// What an agent has while it coordinates: its leader key, and how sure it is of it. Each election that this agent wins makes a new one. Pure.
class Leadership {
 public:
  explicit Leadership(Revision created) : created_{created} {}

  [[nodiscard]] Revision created() const { return created_; }
  /// Of its service; empty until that is open.
  [[nodiscard]] const std::string& address() const { return address_; }
  void serve(std::string address) { address_ = std::move(address); }
  /// The others can see the address.
  void publish() { published_ = true; }
  [[nodiscard]] bool is_published() const { return published_; }

  /// The lease may have expired; etcd has not confirmed it.
  [[nodiscard]] bool is_doubtful() const { return doubtful_; }
  void doubt() { doubtful_ = true; }
  void trust() { doubtful_ = false; }
  void begin_write(Instant now) { writing_since_ = now; }
  void end_write() { writing_since_.reset(); }
  /// When this agent steps down, because another one may reach etcd: one lease after its own ended, or after the pending write began, whichever
  /// is later. None: it is not in doubt, or has nothing to write. `lease_until`: when its lease ends at the earliest.
  [[nodiscard]] std::optional<Instant> given_up_at(Instant lease_until, Duration lease) const {
    if (!doubtful_ || !writing_since_) return {};
    return std::max(lease_until, *writing_since_) + lease;
  }

 private:
  Revision created_{};
  std::string address_;
  bool published_ = false;
  bool doubtful_ = false;
  std::optional<Instant> writing_since_;
};

/// More methods than 25: one for each event and each conclusion. Its fields are what is known of the leader, of the own lease and leadership, and of the calls to etcd.
class Election {
 public:
  explicit Election(const ElectionOptions& options) : options_{options}, calls_{options.seed} {}

  [[nodiscard]] std::vector<election::Action> on(const election::Event& event, Instant now);
  /// When a Tick has something to do; nothing when only events can help.
  [[nodiscard]] std::optional<Instant> wake_at() const;
  /// This agent coordinates.
  [[nodiscard]] bool leads() const { return phase_ == Phase::leading; }
  /// It has asked for the leadership, and does not know yet whether it has it.
  [[nodiscard]] bool is_campaigning() const { return phase_ == Phase::campaigning; }
  /// It coordinates, and its lease has not ended by its own clock: nobody else can have been elected.
  [[nodiscard]] bool certain(Instant now) const { return leads() && now < lease_until_; }

 private:
  enum class Phase {
    looking,      // no coordinator is at hand: looks at the leader key now and then
    following,    // the line to the coordinator is up; nothing is asked of etcd
    campaigning,  // the lease is asked for, then the key
    leading,
    resigned,
  };

  void on(const election::Begin&) { look(); }
  void on(const election::LineUp&);
  void on(const election::LineDown&);
  void on(const election::Found& found);
  void on(const election::Granted& granted);
  void on(const election::Counted& counted);
  void on(const election::Published& published);
  void on(const election::Kept& kept);
  void on(const election::Unanswered& unanswered);
  void on(const election::Serving& serving);
  void on(const election::CannotServe& cannot);
  void on(const election::WriteBegan&);
  void on(const election::WriteDone&);
  void on(const election::WriteRefused&);
  void on(const election::Tick&);
  void on(const election::Withdraw&) { withdrawn_ = true; }
  void on(const election::Resign&);

  void look();
  void confirm(const std::optional<Leader>& leader);
  void follow(const Leader& leader);
  void look_after(Duration wait) { calls_.plan(now_ + wait); }
  void consider(const std::optional<Leader>& leader);
  void keep_or_publish();
  void step_down(std::string why);
  void give_the_lease_back();
  void explain(std::string why);
  template <class Action>
  void call(Action action) {
    calls_.begin(now_);
    act(std::move(action));
  }
  [[nodiscard]] std::optional<Instant> give_up_at() const;
  template <class Action>
  void act(Action action) {
    actions_.emplace_back(std::move(action));
  }

  ElectionOptions options_;
  Instant now_{};
  std::vector<election::Action> actions_;  // of the event at hand

  Phase phase_ = Phase::looking;
  EtcdCalls calls_;
  Lease lease_{};                         // ours, or the last that was
  Instant lease_until_{};                 // at the least
  std::optional<Leadership> leadership_;  // leading
  Leader followed_{};                     // looking, following
  bool is_first_line_ = false;            // no line to the followed coordinator has been up yet
  bool confirms_ = false;                 // following: the line came back by itself, and another may have been elected meanwhile
  bool was_absent_ = false;               // looking: when it was looked at last, there was no leader
  Instant campaign_not_before_{};
  bool withdrawn_ = false;
  std::string explained_;
};

}  // namespace elrun::inline v0
