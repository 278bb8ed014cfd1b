#include "rendezvous/round/node_names.hpp"

#include <algorithm>
#include <utility>

namespace elrun::inline v0 {

bool NodeNames::is_replaced(const Incarnation& who) const {
  const auto replaced = replaced_.find(who.node);
  return replaced != replaced_.end() && replaced->second.contains(who.number) && !ELRUN_PLANTED(replaced_incarnation_returns);
}

void NodeNames::replace(const Incarnation& who) {
  std::set<std::uint64_t>& replaced = replaced_[who.node];
  if (replaced.size() >= replaced_max) replaced.erase(replaced.begin());
  replaced.insert(who.number);
}

void NodeNames::lose(const NodeTable::Node& node) {
  if (former_.size() >= former_max) former_.erase(former_.begin());
  former_.insert_or_assign(node.join.who.node, Former{node.join.who.number, node.first, node.newest});
}

void NodeNames::take_over(const Incarnation& who) {
  const auto former = former_.find(who.node);
  if (former == former_.end() || former->second.incarnation == who.number) return;
  replace({who.node, former->second.incarnation});  // it was lost before its successor came, and may be back one day
  former_.erase(former);
}

bool NodeNames::is_outdated(StreamNumber stream, const Incarnation& who, const NodeTable::Node* here) const {
  const auto is_before = [&](std::uint64_t holder, StreamNumber first, StreamNumber newest) {
    return stream < (who.number == holder ? newest : first);
  };
  if (here != nullptr && is_before(here->join.who.number, here->first, here->newest)) return true;
  const auto former = former_.find(who.node);
  return former != former_.end() && is_before(former->second.incarnation, former->second.first, former->second.newest);
}

bool NodeNames::is_newest(const Incarnation& who, const NodeTable::Node* here) const {
  return who.number == (here != nullptr ? here->join.who.number : former_.at(who.node).incarnation);
}

NodeNames::Claim NodeNames::claim(StreamNumber stream, const Join& join, Instant now) {
  std::vector<Claimant>& claimants = claimants_[join.who.node];
  const auto mine = std::find_if(claimants.begin(), claimants.end(), [&](const Claimant& c) { return c.stream == stream; });
  if (mine != claimants.end()) {
    mine->join = join;
    return Claim::waits_already;
  }
  if (claimants.size() >= claimants_max) return Claim::too_many;
  claimants.push_back({stream, join, now});
  return Claim::waits;
}

std::vector<NodeId> NodeNames::claimed() const {
  std::vector<NodeId> names;
  for (const auto& [name, claimants] : claimants_) names.push_back(name);
  return names;
}

NodeNames::Resolved NodeNames::resolve(const NodeId& name, const NodeTable& nodes, const Timeouts& timeouts, Instant now) {
  Resolved resolved;
  const auto at = claimants_.find(name);
  if (at == claimants_.end()) return resolved;
  std::vector<Claimant>& claimants = at->second;
  std::erase_if(claimants, [&](const Claimant& c) { return !nodes.is_open(c.stream); });
  if (!nodes.has(name)) {
    if (!claimants.empty()) resolved.heir = std::move(claimants.front()), claimants.erase(claimants.begin());
    if (resolved.heir)
      for (Claimant& c : claimants) c.since = now;
  } else if (const NodeTable::Stream* const stream = nodes.stream_of(name)) {
    while (!claimants.empty()) {
      const Claimant& first = claimants.front();
      // What was heard earlier may have been said before this one was started: a message can be under way for seconds. Who lives says something in each heartbeat.
      const Duration late = std::max(timeouts.heartbeat, timeouts.heartbeat_limit - timeouts.heartbeat);
      const bool lives = stream->in_process || stream->heard > first.since + late;
      if (now < first.since + timeouts.heartbeat_limit || !lives) break;
      resolved.refused.push_back(first.stream);
      claimants.erase(claimants.begin());
    }
  }
  if (claimants.empty()) claimants_.erase(at);
  return resolved;
}

void NodeNames::begin_anew(Instant now) {
  for (auto& [name, claimants] : claimants_)
    for (Claimant& c : claimants) c.since = now;
}

std::vector<StreamNumber> NodeNames::end_claims(const NodeTable& nodes) {
  std::vector<StreamNumber> streams;
  for (const auto& [name, claimants] : std::exchange(claimants_, {}))
    for (const Claimant& c : claimants)
      if (nodes.is_open(c.stream)) streams.push_back(c.stream);
  return streams;
}

std::vector<Instant> NodeNames::refused_at(Duration heartbeat_limit) const {
  std::vector<Instant> at;
  for (const auto& [name, claimants] : claimants_) at.push_back(claimants.front().since + heartbeat_limit);
  return at;
}

}  // namespace elrun::inline v0
