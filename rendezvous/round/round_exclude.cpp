// Round: a bad node harms itself. A node whose workers keep failing is excluded for a while, and the others go on without it,
// as long as they satisfy the minimum; where they do not, the rules of restarts hold for it as for any other.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lib/base/words.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {

// Before a failure ends a job that may be a Job, the workers of other nodes have a moment to say what it is.
bool Round::put_off(const Member& member, const WorkerFailed& failed, Instant now) {
  PendingJudgement& pending = current_.pending;
  if (pending.covers(member.node, failed)) return true;
  if (pending.any() || budget_.is_job() || !failed.before_session || !budget_.is_used_up_for_plain_program(options().max_restarts) ||
      now - generation().began() >= start_over_within || !others_suffice(nodes_, {member.node}, needed()))
    return false;
  pending.put_off(member.node, failed, now);
  const std::string what = fmt::format(
      "worker {} of node {} {} {}. A program that is not a Job has no restart left. Waiting up to {:.0f} s for another node to report that this is a Job, which goes on without that node",
      failed.rank.value_or(member.base_rank), member.node.value(), failed.death.lived() ? "cannot go on:" : "ended by", failed.what,
      seconds(kind_known_within));
  say(Level::warning, what);
  tell_members(what);
  return true;
}

void Round::judge_what_was_put_off(Instant now) {
  const auto unjudged = current_.pending.take_due(budget_.is_job(), now);
  if (!unjudged) return;
  const Member* const member = generation().member(unjudged->node);
  const RootCause::Death* const death = current_.root_cause.find(unjudged->node, unjudged->failed.local_rank);
  if (member == nullptr || death == nullptr) return;
  judge(*member, unjudged->failed,
        {Code::peer_lost, Remedy::rejoin, death->what, Rank{death->worker.rank}, {}, generation().id(), member->node.value()}, now);
}

// Of a Job nobody is done before it has opened a session: that node runs another program, or its program does not work there.
void Round::judge_done_before_session(Instant now) {
  if (!budget_.is_job() || !generation().runs()) return;
  const std::optional<NodeId> id = current_.state.take_done_before_session();
  Node* const node = id ? nodes_.find(*id) : nullptr;
  if (node == nullptr) return;
  WorkerFailed failed{generation().id(), 0, 1, "exit code 0 before it opened its session, in a job whose other workers did", true,
                      Duration{0},       {}};
  failed.before_session = true;
  worker_failed(*node, failed, now);
}

void Round::exclude(const NodeId& id, Instant now, bool by_configuration) {
  excluded_.exclude(id, generation().has_decided() ? Duration{0} : Duration{now - generation().began()}, nodes_, now, by_configuration);
  say(Level::warning, fmt::format("node {} is {}", id.value(), excluded_.why_failing(id, now)));
}

// The others do not satisfy the minimum any more: a bad node is better than none. But one that was lost may be on its way back, and
// the bad node would use the restarts up meanwhile.
std::optional<Instant> Round::lift_at() const {
  if (generation().runs() || in_sight() >= needed()) return {};
  return forming_.lift_at(setup_.timeouts.join);
}

void Round::lift_exclusions(Instant now) {
  const std::optional<Instant> at = lift_at();
  if (!at || !members_are_ready()) return;
  for (const auto& [id, until] : excluded_.failing()) {
    if (now >= *at) {
      say(Level::warning, fmt::format("node {} was excluded and is admitted again: without it the job has fewer than {}", id.value(),
                                      count_of(needed(), "node")));
      excluded_.retry(id, nodes_, now);
    } else if (forming_.tell_of_lift()) {
      say(Level::info,
          fmt::format("{} of at least {} are here. Excluded node {} is admitted in {:.0f} s unless another node joins first",
                      nodes_.waiting(), count_of(needed(), "node"), id.value(), std::ceil(seconds(std::min(*at, until) - now))));
    }
  }
}

}  // namespace elrun::inline v0
