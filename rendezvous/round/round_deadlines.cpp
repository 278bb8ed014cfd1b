// Round: its deadlines, in one table.
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {

// Who waits, until when, and what happens then. `advance` acts on what is due; a row that is due already has been seen to.
std::vector<RoundDeadline> Round::deadlines(Instant now) const {
  const Timeouts& limits = setup_.timeouts;
  std::vector<RoundDeadline> rows;
  const auto row = [&](std::string_view who, std::optional<Instant> at, std::string_view then) {
    if (at && *at > now) rows.push_back({who, *at, then});
  };
  row("a stream on which nothing was heard", nodes_.next_silence(), "its node is lost");
  for (const Instant at : names_.refused_at(limits.heartbeat_limit))
    row("a process that joined under the name of a live node", at, "it is refused");
  row("a node whose agent has ended, and whose stream has not", ended_.next_due(), "it is lost");
  if (!nodes_.broken().empty() && !verdict_.is_given()) {
    if (generation().is_deserted(now)) row("members, after all streams broke at once", generation().deserted_until(), "they are lost");
    else row("a node whose stream broke", nodes_.broken().begin()->first + limits.reconnect_grace, "it is lost");
  }
  if (verdict_.is_given()) {
    row("nodes that have not confirmed the verdict", verdict_.waits_until(limits.verdict_linger), "the coordinator may exit");
    row("nodes that come after the end of a job that is done", verdict_.lingers_until(nodes_, terms_.nodes_max()),
        "the coordinator may exit");
  } else if (terms_.are_known()) {
    row("waiting nodes", status_.next(), "they get a status message");
    row("newcomers and workers for which there is room", growth_at(), "the generation ends for them");
    for (const NodeId& id : nodes_.preparations())
      if (const Node& node = nodes_.at(id); node.is_preparing())
        row("a node that starts its workers before it gets a place", prepared_by(node), "it has failed to");
    if (recovery_) row("members of another coordinator's generation", recovery_->until(), "it ends");
    if (current_.root_cause.failing())
      row("failure reports of a job that fails", current_.root_cause.failing()->until, "the verdict names the root cause");
    row("members of a generation that may still run elsewhere", earlier_.hold_until(), "another one begins");
    row("workers that fail repeatedly", budget_.pause_until(), "they are started again");
    row("word whether the program is a Job", current_.pending.until(), "it counts as a plain program");
    if (others_wait_for_starting()) row("members that wait for a start", current_.start_watch.tell_at(), "they are told for whom");
    for (const auto& [id, starting] : current_.start_watch.all())
      row("workers that have not joined the world", starting.since + limits.session, "the others go on without them");
    for (const auto& [record, history] : excluded_.histories())
      row("a node whose workers keep failing", history.until, "it is tried again");
    if (!excluded_.histories().empty()) row("nodes that are missing for the minimum", lift_at(), "an excluded node is taken");
    row("a node that another one cannot reach", excluded_.next_let_in(), "it is tried again");
    row("members that cannot reach each other", current_.unreachable.judged_at(), "the generation ends");
    if (generation().is_revoked() && !members_are_ready()) row("members that end their workers", generation().return_by(), "they are lost");
    if (!generation().runs() && forming_.enough_since() && members_are_ready()) row("last call", closes_at(), "the round closes");
    if (!generation().runs() && in_sight() < needed()) row("the minimum of nodes", forming_.given_up_at(limits.join), "the job fails");
  }
  return rows;
}

}  // namespace elrun::inline v0
