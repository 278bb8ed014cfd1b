// Round: its deadlines, in one table, and when the shell has to wake it.
#include <algorithm>

#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {

// Who waits, until when, and what happens then. `settle` acts on what is due; a row that is due already has been seen to.
std::vector<RoundDeadline> Round::deadlines(Instant now) const {
  const Timeouts& limits = setup_.timeouts;
  std::vector<RoundDeadline> rows;
  const auto row = [&](std::string_view who, std::optional<Instant> at, std::string_view then) {
    if (at && *at > now) rows.push_back({who, *at, then});
  };
  row("a stream on which nothing was heard", nodes_.next_silence(), "its node is lost");
  for (const auto& [id, claimants] : claimants_)
    row("a process that joined under the name of a live node", claimants.front().since + limits.heartbeat_limit, "it is refused");
  if (!nodes_.broken().empty() && !verdict_) {
    if (deserted(now)) row("members, after all streams broke at once", deserted_until_, "they are lost");
    else row("a node whose stream broke", nodes_.broken().begin()->first + limits.reconnect_grace, "it is lost");
  }
  if (verdict_) {
    row("nodes that have not confirmed the verdict", verdict_at_ + limits.verdict_linger, "the coordinator may exit");
    if (others_may_come())
      row("nodes that come after the end of a job that is done", verdict_at_ + late_linger, "the coordinator may exit");
  } else if (options_) {
    row("waiting nodes", status_.next(), "they get a status message");
    row("newcomers and workers for which there is room", growth_at(), "the generation ends for them");
    if (recovery_) row("members of another coordinator's generation", recovery_->until(), "it ends");
    if (root_cause_.failing()) row("failure reports of a job that fails", root_cause_.failing()->until, "the verdict names the root cause");
    row("members of a generation that may still run elsewhere", hold_until_, "another one begins");
    row("workers that fail repeatedly", budget_.pause_until(), "they are started again");
    if (unjudged_) row("word whether the program is a Job", unjudged_->until, "it counts as a plain program");
    if (others_wait_for_starting()) row("members that wait for a start", start_watch_.tell_at(), "they are told for whom");
    for (const auto& [id, starting] : start_watch_.all())
      row("workers that have not joined the world", starting.since + limits.session, "the others go on without them");
    for (const auto& [record, history] : failures_.all()) row("a node whose workers keep failing", history.until, "it is tried again");
    if (!failures_.all().empty()) row("nodes that are missing for the minimum", lift_at(), "an excluded node is taken");
    row("a node that another one cannot reach", exclusions_.next(), "it is tried again");
    if (apart_) row("members that cannot reach each other", apart_->look_at, "the generation ends");
    if (revoked_ && !living_members_all_ready()) row("members that end their workers", return_by_, "they are lost");
    if (!runs() && enough_since_ && living_members_all_ready()) row("last call", closes_at(), "the round closes");
    if (!runs() && forming_since_ && nodes_.waiting() < needed())
      row("the minimum of nodes", *forming_since_ + limits.join, "the job fails");
  }
  return rows;
}

void Round::wake(Instant now) {
  // Stall compensation: it looks at the clock at every heartbeat, or it would not notice that this process was itself stopped.
  if (nodes_.has_streams() && beat_at_ <= now) beat_at_ = now + setup_.timeouts.heartbeat;
  std::optional<Instant> next;
  if (nodes_.has_streams()) next = beat_at_;
  for (const RoundDeadline& row : deadlines(now)) next = std::min(next.value_or(Instant::max()), row.at);
  if (next == wake_) return;
  wake_ = next;
  if (next) actions_.emplace_back(WakeAt{*next});
}

}  // namespace elrun::inline v0
