#pragma once
/// \file GenerationState: the newest generation, who its members are, and what has become of them. Pure.
///
/// CurrentGeneration is all that holds for one generation alone. Another generation is another value, so nothing of the last one can be left
/// over: it is assigned where a generation begins or goes on here (`Round::enter`), and where one is known to be over (`Round::end_recovery`).

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/pending_judgement.hpp"
#include "rendezvous/round/root_cause.hpp"
#include "rendezvous/round/stall.hpp"
#include "rendezvous/round/start_watch.hpp"
#include "rendezvous/round/unreachable_pairs.hpp"

namespace elrun::inline v0 {

constexpr Duration progress_told_every = 60s;  ///< The log tells of steps this often, and of the first in each generation.

/// Its 27 methods are one question or one event each, of one line as a rule.
class GenerationState {
 public:
  /// None has begun: its number is 0, it has no members and does not run.
  GenerationState() = default;
  /// It begins `at`, or is known to have begun. `roster`: the hash of its members. `own_place`: of the node in this process, among them.
  GenerationState(Generation generation, std::vector<Member> members, std::uint64_t roster, std::optional<std::uint32_t> own_place,
                  Instant at)
      : generation_{generation}, members_{std::move(members)}, roster_{roster}, own_place_{own_place}, began_{at} {}

  // Who is in it
  [[nodiscard]] const Generation& id() const { return generation_; }
  [[nodiscard]] bool has_begun() const { return generation_.number > 0; }
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] std::optional<std::uint32_t> own_place() const { return own_place_; }
  [[nodiscard]] Instant began() const { return began_; }
  /// nullptr: the node is no member.
  [[nodiscard]] const Member* member(const NodeId& node) const;
  /// The member that this rank is on; `rank` is less than the world size.
  [[nodiscard]] const Member& member_of(std::uint32_t rank) const;
  [[nodiscard]] Seat seat_of(std::uint32_t group_rank) const;

  // Whether it goes on
  [[nodiscard]] bool runs() const { return !members_.empty() && !revoked_at_; }
  [[nodiscard]] bool is_revoked() const { return revoked_at_.has_value(); }
  /// It is over. Living members are ready for the next one by then, or lost: some may have longer than others, none has less than `within`.
  void revoke(Duration within, Instant now) { revoked_at_ = now, return_by_ = now + within; }
  /// Only of one that is revoked.
  [[nodiscard]] Instant revoked_at() const { return *revoked_at_; }
  /// When to look who has not returned in time.
  [[nodiscard]] Instant return_by() const { return return_by_; }
  /// Those that are left have until then at least.
  void wait_for_return(Instant until) { return_by_ = until; }
  void excuse(const Stall& stall) {
    if (revoked_at_) *revoked_at_ += stall.length;
    stall.excuse(return_by_);
    stall.excuse(deserted_until_);
  }
  /// Every node's stream broke at one time, which was this coordinator's own failure: members have until then to come back.
  void desert(Instant until) { deserted_until_ = until; }
  [[nodiscard]] bool is_deserted(Instant now) const { return runs() && now < deserted_until_; }
  [[nodiscard]] Instant deserted_until() const { return deserted_until_; }

  // Members whose workers all ended with 0
  void done(const NodeId& node, bool before_session);
  [[nodiscard]] const std::set<NodeId>& done() const { return done_; }
  [[nodiscard]] bool is_done(const NodeId& node) const { return done_.contains(node); }
  [[nodiscard]] bool all_done() const { return !members_.empty() && done_.size() == members_.size(); }
  /// One of those of which no worker ever opened a session. It counts as done no longer.
  [[nodiscard]] std::optional<NodeId> take_done_before_session();

  // Members that were lost since it began, and how
  void lost(const NodeId& node, std::string how) { lost_[node] = std::move(how); }
  [[nodiscard]] const std::map<NodeId, std::string>& lost() const { return lost_; }

  // Its steps
  /// A step was decided in it. True if the log tells of this one.
  [[nodiscard]] bool decided(Instant now);
  [[nodiscard]] bool has_decided() const { return stepped_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  Generation generation_{};
  std::vector<Member> members_;
  std::uint64_t roster_ = 0;
  std::optional<std::uint32_t> own_place_;
  Instant began_{};
  std::optional<Instant> revoked_at_;
  Instant return_by_{};
  Instant deserted_until_{};
  std::set<NodeId> done_;
  std::set<NodeId> unseen_;  // of done_: no worker of theirs ever opened a session
  std::map<NodeId, std::string> lost_;
  bool stepped_ = false;
  std::optional<Instant> progress_told_;
};

/// The generation, and the parts that are about it alone.
struct CurrentGeneration {
  GenerationState state;
  RootCause root_cause{};
  StartWatch start_watch{};
  UnreachablePairs unreachable{};
  PendingJudgement pending{};

  void excuse(const Stall& stall) {
    state.excuse(stall);
    root_cause.excuse(stall);
    start_watch.excuse(stall);
    pending.excuse(stall);
  }
  /// It is over: what waited for a decision about it waits no longer. Its root cause is still looked for.
  void revoke(Duration within, Instant now) {
    state.revoke(within, now);
    pending.forget();
    start_watch.end();
    unreachable.forget();
  }
};

}  // namespace elrun::inline v0
