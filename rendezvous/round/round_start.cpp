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
  if (start_watch_.note(id, said, began_, status_debounce, now))
    say(Level::info, fmt::format("all workers of generation {} have joined the world", to_string(generation_)));
}

// Plain programs never join. Where all are starting, nobody waits.
bool Round::others_wait_for_starting() const {
  const std::size_t starting = start_watch_.all().size();
  return budget_.is_job() && runs() && starting > 0 && starting + done_.size() < members_.size();
}

// Where no step was ever decided, nobody can tell whether the program is to take so long.
bool Round::can_spare_starting() const { return budget_.newest_step() > 0 && others_can_go_on(start_watch_.nodes()); }

void Round::judge_starting(Instant now) {
  if (!others_wait_for_starting() || ELRUN_PLANTED(stuck_start_is_waited_for)) return;
  tell_of_starting(now);
  if (!can_spare_starting()) return;
  const std::vector<NodeId> late = start_watch_.late(setup_.timeouts.session, reconnect_window, now);
  if (late.empty()) return;
  const std::string what = fmt::format("not joining the world within {:.3g} s of its start", seconds(setup_.timeouts.session));
  std::vector<std::string> names;
  for (const NodeId& id : late) {
    names.push_back(fmt::format("rank {} of node {}", start_watch_.all().at(id).rank, id.value()));
    failures_.note(id, what, true);
  }
  const Rank first{start_watch_.all().at(late.front()).rank};
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
  if (!start_watch_.tell_at() || now < *start_watch_.tell_at()) return;
  start_watch_.told(now);
  const auto& starting = start_watch_.all();
  const std::optional<Instant> limit = start_watch_.first_limit(setup_.timeouts.session);
  const bool watched = std::any_of(starting.begin(), starting.end(), [](const auto& entry) { return entry.second.watched; });
  const std::string then =
      limit && can_spare_starting() ? fmt::format("if that lasts another {:.0f} s, the others go on without {}",
                                                  std::ceil(seconds(*limit - now)), starting.size() == 1 ? "that node" : "them")
      : watched                     ? "its node ends it after its --hang_timeout"
      : budget_.newest_step() == 0  ? "no step is decided yet, so no limit applies (--hang_timeout sets one)"
                                   : "without it fewer nodes than the minimum would be left, so no limit applies (--hang_timeout sets one)";
  const std::string text = fmt::format(
      "generation {}: {} {} for {}; {}", to_string(generation_), count_of(members_.size() - starting.size() - done_.size(), "node"),
      members_.size() - starting.size() - done_.size() == 1 ? "waits" : "wait", some_of(start_watch_.described(now)), then);
  say(Level::info, text);
  for (const Member& m : members_)
    if (const Node* node = nodes_.find(m.node))
      send(*node, Waiting{.why = text, .running = generation_, .for_this_node = starting.contains(m.node)});
}

}  // namespace elrun::inline v0
