// Round: members whose workers have been started and have not joined the world. The others stand still until they do: they are told
// for whom, and a job that has trained goes on without such a node, where the others satisfy the minimum.
#include <fmt/format.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {

// Plain programs never join.
bool Round::others_wait_for_starting() const {
  return budget_.is_job() && generation().runs() &&
         current_.start_watch.others_wait(generation().members().size(), generation().done().size());
}

void Round::judge_starting(Instant now) {
  if (!others_wait_for_starting() || ELRUN_PLANTED(stuck_start_is_waited_for)) return;
  StartWatch& watch = current_.start_watch;
  // Where no step was ever decided, nobody can tell whether the program is to take so long.
  const bool has_trained = budget_.newest_step() > 0;
  const bool can_spare = has_trained && others_suffice(nodes_, watch.nodes(), needed());
  if (watch.tell(now)) {
    const std::size_t waiting = generation().members().size() - watch.all().size() - generation().done().size();
    const std::string text = watch.text(generation().id(), waiting, can_spare, has_trained, setup_.timeouts.session, now);
    say(Level::info, text);
    tell_members(text, watch.nodes());
  }
  if (!can_spare) return;
  const std::vector<NodeId> late = watch.late(setup_.timeouts.session, reconnect_window, now);
  if (late.empty()) return;
  const std::string what = fmt::format("not joining the world within {:.3g} s of its start", seconds(setup_.timeouts.session));
  std::vector<std::string> names;
  for (const NodeId& id : late) {
    names.push_back(fmt::format("rank {} of node {}", watch.all().at(id).rank, id.value()));
  }
  const Rank first{watch.all().at(late.front()).rank};
  revoke(
      EndCause::hang,
      {Code::deadline_passed,
       Remedy::rejoin,
       fmt::format("{} {} not joined the world within {:.3g} s of the start (start_timeout); the others go on without {}", some_of(names),
                   names.size() == 1 ? "has" : "have", seconds(setup_.timeouts.session), names.size() == 1 ? "that node" : "those nodes"),
       first,
       {},
       generation().id(),
       late.front().value()},
      now);
  // One after the other: a record that is excluded is not forgotten to make room for the next one.
  for (const NodeId& id : late) {
    excluded_.failed(id, what, true);
    exclude(id, now);
  }
}

}  // namespace elrun::inline v0
