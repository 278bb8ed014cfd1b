// Round: members whose workers have been started and have not joined the world. The others stand still until they do: they are told
// for whom, and a job that has trained goes on without such a node, where the others satisfy the minimum.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {

void Round::note_starting(const NodeId& id, const WorkersStarting& said, Instant now) {
  if (said.count == 0) {
    if (starting_.erase(id) > 0 && starting_.empty() && starting_told_)
      say(Level::info, fmt::format("all workers of generation {} have joined the world", to_string(generation_)));
  } else {
    starting_[id] = {said.rank, said.count, said.opened, said.watched, std::max(now - said.ago, began_)};
    if (!tell_starting_at_) tell_starting_at_ = now + explain_after;  // others may say so as well
  }
  if (starting_.empty()) starting_told_ = false, tell_starting_at_.reset();
}

// Plain programs never join. Where all are starting, nobody waits.
bool Round::others_wait_for_starting() const {
  return budget_.is_job() && runs() && !starting_.empty() && starting_.size() + done_.size() < members_.size();
}

// Where no step was ever decided, nobody can tell whether the program is to take so long.
bool Round::can_spare_starting() const {
  if (budget_.newest_step() == 0) return false;
  std::set<NodeId> without;
  for (const auto& [id, starting] : starting_) without.insert(id);
  return others_can_go_on(without);
}

void Round::judge_starting(Instant now) {
  if (!others_wait_for_starting() || ELRUN_PLANTED(stuck_start_is_waited_for)) return;
  tell_of_starting(now);
  if (!can_spare_starting()) return;
  const auto is_over = [&](const Starting& s, Instant at) { return !s.watched && at >= s.since + setup_.timeouts.session; };
  if (std::none_of(starting_.begin(), starting_.end(), [&](const auto& entry) { return is_over(entry.second, now); })) return;
  const std::string what = fmt::format("not joining the world within {:.3g} s of its start", seconds(setup_.timeouts.session));
  std::vector<NodeId> late;
  std::vector<std::string> names;
  for (const auto& [id, starting] : starting_) {
    if (!is_over(starting, now + reconnect_window)) continue;
    late.push_back(id);
    names.push_back(fmt::format("rank {} of node {}", starting.rank, id.value()));
    note_failure_of(id, what, true);
  }
  const Rank first{starting_.at(late.front()).rank};
  revoke(
      EndCause::hang,
      {Code::deadline_passed,
       Remedy::rejoin,
       fmt::format("{} {} not joined the world within {:.3g} s of the start (start_timeout); the others go on without {}", some_of(names),
                   names.size() == 1 ? "has" : "have", seconds(setup_.timeouts.session), names.size() == 1 ? "that node" : "those nodes"),
       first,
       {},
       generation_,
       late.front().value()},
      now);
  for (const NodeId& id : late) exclude(id, now);
}

void Round::tell_of_starting(Instant now) {
  if (!tell_starting_at_ || now < *tell_starting_at_) return;
  tell_starting_at_ = now + starting_told_every;
  starting_told_ = true;
  std::vector<std::string> names;
  std::optional<Instant> limit;
  bool watched = false;
  for (const auto& [id, s] : starting_) {
    names.push_back(fmt::format("rank {} of node {} ({}started {:.0f} s ago, {})", s.rank, id.value(),
                                s.count > 1 ? fmt::format("and {} more there; ", s.count - 1) : "", seconds(now - s.since),
                                s.opened ? "has opened its session and not asked for its peers" : "has not opened its session"));
    watched = watched || s.watched;
    if (!s.watched) limit = std::min(limit.value_or(Instant::max()), s.since + setup_.timeouts.session);
  }
  const std::string then =
      limit && can_spare_starting() ? fmt::format("if that lasts another {:.0f} s, the others go on without {}",
                                                  std::ceil(seconds(*limit - now)), starting_.size() == 1 ? "that node" : "them")
      : watched                     ? "its node ends it after its --hang_timeout"
      : budget_.newest_step() == 0  ? "no step is decided yet, so no limit applies (--hang_timeout sets one)"
                                   : "without it fewer nodes than the minimum would be left, so no limit applies (--hang_timeout sets one)";
  const std::string text = fmt::format("generation {}: {} {} for {}; {}", to_string(generation_),
                                       count_of(members_.size() - starting_.size() - done_.size(), "node"),
                                       members_.size() - starting_.size() - done_.size() == 1 ? "waits" : "wait", some_of(names), then);
  say(Level::info, text);
  for (const Member& m : members_)
    if (const auto node = nodes_.find(m.node); node != nodes_.end())
      send(node->second, Waiting{.why = text, .running = generation_, .for_this_node = starting_.contains(m.node)});
}

}  // namespace elrun::inline v0
