// Round: a bad node harms itself. A node whose workers keep failing is excluded for a while, and the others go on without it,
// as long as they satisfy the minimum; where they do not, the rules of restarts hold for it as for any other.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {

// Members, and newcomers that wait for a place.
bool Round::others_can_go_on(const std::set<NodeId>& without) const {
  const auto others = std::count_if(nodes_.all().begin(), nodes_.all().end(), [&](const auto& entry) {
    const Node& node = entry.second;
    return !without.contains(entry.first) && !node.excluded && node.join.workers > 0 && (node.member || node.is_waiting());
  });
  return static_cast<std::size_t>(others) >= needed();
}

// Where no restart is left, a failure ends a job that is no Job. Before that is concluded of a worker that died before it could
// say what it is, the others have a moment to say it.
bool Round::put_off(const Member& member, const WorkerFailed& failed, Instant now) {
  if (unjudged_ && failed.before_session && unjudged_->node == member.node) return true;  // another worker of that node
  const bool would_end = static_cast<std::int64_t>(budget_.counts().used) >= std::max(options().max_restarts, 0);
  if (unjudged_ || budget_.is_job() || !failed.before_session || !would_end || now - began_ >= start_over_within ||
      !others_can_go_on({member.node}))
    return false;
  unjudged_ = {now + kind_known_within, member.node, failed};
  const std::string what = fmt::format(
      "worker {} of node {} ended by {}, and no restart is left for a plain program; for up to {:.0f} s a worker of another node may say that the job is a Job's, which goes on without that node",
      failed.rank.value_or(member.base_rank), member.node.value(), failed.what, seconds(kind_known_within));
  say(Level::warning, what);
  for (const Member& m : members_)
    if (const Node* node = nodes_.find(m.node)) send(*node, Waiting{.why = what, .running = generation_});
  return true;
}

void Round::judge_what_was_put_off(Instant now) {
  if (!unjudged_ || !runs() || (!budget_.is_job() && now < unjudged_->until)) return;
  const Unjudged unjudged = *std::exchange(unjudged_, {});
  const auto me = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.node == unjudged.node; });
  const RootCause::Death* const death = root_cause_.find(unjudged.node, unjudged.failed.local_rank);
  if (me == members_.end() || death == nullptr) return;
  judge(*me, unjudged.failed, {Code::peer_lost, Remedy::rejoin, death->what, Rank{death->worker.rank}, {}, generation_, me->node.value()},
        now);
}

void Round::workers_are_job(Instant now) {
  budget_.note_job();
  judge_what_was_put_off(now);
  workers_done_unseen(now);
}

// Of a Job nobody is done before it has opened a session: that node runs another program, or its program does not work there.
void Round::workers_done_unseen(Instant now) {
  if (!budget_.is_job() || !runs() || unseen_.empty()) return;
  const NodeId id = *unseen_.begin();
  unseen_.erase(id);
  done_.erase(id);
  Node* const node = nodes_.find(id);
  if (node == nullptr) return;
  WorkerFailed failed{generation_, 0,           1, "exit code 0 before it opened its session, in a job whose other workers did",
                      true,        Duration{0}, {}};
  failed.before_session = true;
  worker_failed(*node, failed, now);
}

void Round::open_record(const Join& join, Instant now) {
  const auto connected = [this](const NodeId& other) { return nodes_.at(other).stream.has_value(); };
  if (const std::optional<NodeId> before = failures_.open(join.who.node, join.place, connected)) note_kept_out(*before, now);
}

// It failed because another member was lost.
void Round::take_back_failure() {
  if (const std::optional<NodeId> id = failures_.take_back())
    nodes_.change(nodes_.at(*id), [&](Node& n) { n.excluded = is_kept_out(*id, n.join.who.number); });
}

void Round::exclude(const NodeId& id, Instant now) {
  failures_.exclude(id, stepped_ ? Duration{0} : Duration{now - began_}, exclusion_most, now);
  note_kept_out(id, now);
  say(Level::warning, fmt::format("node {} is {}", id.value(), failures_.why_excluded(id, now)));
}

// There are two reasons, and each has its own end.
bool Round::is_kept_out(const NodeId& id, std::uint64_t incarnation) const {
  return failures_.is_excluded(id) || exclusions_.of(id, incarnation) != nullptr;
}

void Round::note_kept_out(const NodeId& id, Instant now) {
  Node* const node = nodes_.find(id);
  if (node == nullptr) return;
  nodes_.change(*node, [&](Node& n) {
    const bool before = std::exchange(n.excluded, is_kept_out(id, n.join.who.number));
    if (before && !n.excluded) n.arrived = now;
    n.told = 0;
  });
}

void Round::end_exclusion(const FailureRecords::Record& record, Instant now) {
  failures_.end_exclusion(record);
  if (const std::optional<NodeId> id = failures_.holder_of(record)) note_kept_out(*id, now);
}

void Round::end_exclusions(Instant now) {
  for (const FailureRecords::Record& record : failures_.due(now)) {
    if (const std::optional<NodeId> id = failures_.holder_of(record))
      say(Level::info, fmt::format("node {} was excluded, and tries again", id->value()));
    end_exclusion(record, now);
  }
}

// The others do not satisfy the minimum any more: a bad node is better than none. But one that was lost may be on its way back, and
// the bad node would use the restarts up meanwhile.
std::optional<Instant> Round::lift_at() const {
  if (!forming_since_ || runs() || nodes_.waiting() >= needed()) return {};
  return *forming_since_ + std::min(exclusion_stays, setup_.timeouts.join / 2);
}

// Nodes that are taken before others are tried again that cannot reach each other.
std::size_t Round::excluded_here() const {
  const auto excluded = failures_.excluded();
  return static_cast<std::size_t>(std::count_if(excluded.begin(), excluded.end(), [&](const auto& out) {
    return exclusions_.of(out.first, nodes_.at(out.first).join.who.number) == nullptr;
  }));
}

void Round::lift_exclusions(Instant now) {
  const std::optional<Instant> at = lift_at();
  if (!at || !living_members_all_ready()) return;
  for (const auto& [id, until] : failures_.excluded()) {
    if (now >= *at) {
      say(Level::warning, fmt::format("node {} was excluded, and is needed: the others are fewer than the minimum of {}", id.value(),
                                      count_of(needed(), "node")));
      end_exclusion(failures_.record_of(id), now);
    } else if (!std::exchange(lift_told_, true)) {
      say(Level::info,
          fmt::format("{} of at least {} are here: node {}, which is excluded, is taken in {:.0f} s, unless another comes before",
                      nodes_.waiting(), count_of(needed(), "node"), id.value(), std::ceil(seconds(std::min(*at, until) - now))));
    }
  }
}

}  // namespace elrun::inline v0
