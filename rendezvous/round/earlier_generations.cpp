#include "rendezvous/round/earlier_generations.hpp"

#include <algorithm>
#include <set>

#include "rendezvous/round/recovery_window.hpp"

namespace elrun::inline v0 {

void EarlierGenerations::learn_from(const Join& join) {
  if (!ELRUN_PLANTED(floor_not_raised)) floor_ = std::max({floor_, join.last.number, join.heard});
}

void EarlierGenerations::note(const Join& join, Duration wait, Instant now) {
  const bool knows_that_one_runs = join.heard > join.last.number || (may_run_ && join.last.number < first_floor_);
  if (knows_that_one_runs && hold_until_ == Instant{}) hold_until_ = now + wait;
  // A member of the one on record that has ended it: nobody has to be waited for.
  if (may_run_ && !join.resuming && join.last.number > 0 && join.last.number == floor_) hold_until_ = now;
  if (!join.resuming && join.seat && join.last.number > (ended_ ? ended_->number : 0)) ended_ = join.last, ended_nodes_ = join.seat->nodes;
}

std::uint64_t EarlierGenerations::next_number() {
  return ELRUN_PLANTED(generation_number_reused) ? std::max<std::uint64_t>(floor_, 1) : ++floor_;
}

Duration EarlierGenerations::last_call(const NodeTable& nodes, bool is_full, const Limits& limits) const {
  if (!ended_) return is_full ? Duration{0} : limits.last_call;
  Duration workers_end{};  // of those that end them still
  for (const auto& [id, node] : nodes.all())
    if (node.stream && node.join.resuming && node.join.last == *ended_)
      workers_end = std::max(workers_end, limits.workers_end + longer_grace(node.join, limits.stop_grace));
  if (!is_full && nodes.waiting() < nodes.connected()) return std::max(limits.last_call, workers_end);
  if (whoever_is_left_waits(nodes)) return Duration{0};
  if (workers_end > Duration{0}) return std::max<Duration>(workers_end, reconnect_window);
  return is_full ? reconnect_window : std::min<Duration>(limits.last_call, reconnect_window);
}

// All nodes of the generation that was over, or all but the one in whose process it was coordinated.
bool EarlierGenerations::whoever_is_left_waits(const NodeTable& nodes) const {
  if (nodes.waiting() + 1 < ended_nodes_) return false;
  std::set<std::uint32_t> here;
  std::set<std::optional<std::uint32_t>> coordinators;
  for (const auto& [id, node] : nodes.all()) {
    if (!node.is_waiting() || !node.comes_from(*ended_)) continue;
    here.insert(node.join.seat->group_rank);
    coordinators.insert(node.join.coordinated_by);
  }
  if (here.size() >= ended_nodes_) return true;
  if (here.size() + 1 < ended_nodes_ || coordinators.size() != 1) return false;
  const std::optional<std::uint32_t>& missing = *coordinators.begin();
  return missing && *missing < ended_nodes_ && !here.contains(*missing);
}

}  // namespace elrun::inline v0
