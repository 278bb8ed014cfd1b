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
  std::vector<NodeId> chosen;
  std::set<std::int32_t> hints;
  for (const auto& [id, node] : nodes.all())
    if (node.is_waiting() && (node.member || (ended && node.comes_from(*ended) && chosen.size() < room)))
      chosen.push_back(id), hints.insert(node.join.hint);
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
  for (const bool late : {false, true})
    for (const auto* more : {&others, &twins})
      for (const NodeId& id : *more)
        if (unprepared(nodes.at(id)) == late && chosen.size() < (late ? needed : room) && !(ELRUN_PLANTED(spare_never_used) && !first))
          chosen.push_back(id);
  return chosen;
}

}  // namespace elrun::inline v0
