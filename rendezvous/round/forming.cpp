#include "rendezvous/round/forming.hpp"

#include <algorithm>
#include <map>

namespace elrun::inline v0 {

std::optional<Instant> Forming::lift_at(Duration join_limit) const {
  if (!since_) return {};
  return *since_ + std::min(exclusion_stays, join_limit / 2);
}

bool others_suffice(const NodeTable& nodes, const std::set<NodeId>& without, std::size_t needed) {
  const auto others = std::count_if(nodes.all().begin(), nodes.all().end(), [&](const auto& entry) {
    const NodeTable::Node& node = entry.second;
    return !without.contains(entry.first) && !node.excluded && node.join.workers > 0 &&
           (node.member || node.is_waiting() || node.is_coming());
  });
  return static_cast<std::size_t>(others) >= needed;
}

std::vector<NodeId> choose_nodes(const NodeTable& nodes, std::size_t room, const std::optional<Generation>& ended, std::size_t needed,
                                 const std::function<bool(const NodeTable::Node&)>& unprepared) {
  std::vector<NodeId> chosen, without_workers;
  std::set<std::int32_t> hints;
  for (const auto& [id, node] : nodes.all())
    if (node.is_waiting() && (node.member || (ended && node.comes_from(*ended) && chosen.size() < room)))
      (unprepared(node) ? without_workers : chosen).push_back(id), hints.insert(node.join.hint);
  std::vector<NodeId> others, twins;
  std::map<std::int32_t, NodeId> latest;
  for (const auto& [arrived, id] : nodes.newcomers()) latest.insert_or_assign(nodes.at(id).join.hint, id);
  for (const auto& [arrived, id] : nodes.newcomers()) {
    if (ended && nodes.at(id).comes_from(*ended)) continue;
    const std::int32_t hint = nodes.at(id).join.hint;
    const bool twin = hint >= 0 && (hints.contains(hint) || latest.at(hint) != id);
    (twin ? twins : others).push_back(id);
  }
  const bool first = is_first_formation(nodes);
  const auto prepared = std::count_if(nodes.newcomers().begin(), nodes.newcomers().end(),
                                      [&](const auto& newcomer) { return !unprepared(nodes.at(newcomer.second)); });
  // A world that has to wait for the start of one waits for all.
  if (std::min(chosen.size() + static_cast<std::size_t>(prepared), room) < needed)
    chosen.insert(chosen.end(), without_workers.begin(), without_workers.end());
  for (const bool late : {false, true})
    for (const auto* more : {&others, &twins})
      for (const NodeId& id : *more)
        if (unprepared(nodes.at(id)) == late && chosen.size() < (late ? needed : room) && !(ELRUN_PLANTED(spare_never_used) && !first))
          chosen.push_back(id);
  return chosen;
}

}  // namespace elrun::inline v0
