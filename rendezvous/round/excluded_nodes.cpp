#include "rendezvous/round/excluded_nodes.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lib/base/words.hpp"

namespace elrun::inline v0 {

bool ExcludedNodes::is_excluded(const Incarnation& who) const {
  return failures_.is_excluded(who.node) || exclusions_.of(who.node, who.number) != nullptr;
}

void ExcludedNodes::mark(const NodeId& node, NodeTable& nodes, Instant now) const {
  NodeTable::Node* const here = nodes.find(node);
  if (here == nullptr) return;
  nodes.change(*here, [&](NodeTable::Node& n) {
    const bool before = std::exchange(n.excluded, is_excluded(n.join.who));
    if (before && !n.excluded) n.arrived = now;
    n.told = 0;
  });
}

bool ExcludedNodes::enter(const Join& join, NodeTable& nodes, Instant now) {
  const auto connected = [&](const NodeId& other) { return nodes.at(other).stream.has_value(); };
  if (const std::optional<NodeId> before = failures_.open(join.who.node, join.place, connected)) mark(*before, nodes, now);
  return is_excluded(join.who);
}

void ExcludedNodes::leave(const NodeId& node, Instant now) {
  exclusions_.gone(node, now);
  failures_.close(node);
}

const FailureRecords::History& ExcludedNodes::failed(const NodeId& node, const std::string& what, bool at_start) {
  return failures_.note(node, what, at_start);
}

void ExcludedNodes::take_back(NodeTable& nodes) {
  if (const std::optional<NodeId> id = failures_.take_back())
    nodes.change(nodes.at(*id), [&](NodeTable::Node& n) { n.excluded = is_excluded(n.join.who); });
}

void ExcludedNodes::progressed(const NodeTable& nodes) {
  failures_.forget([&](const NodeId& known) { return nodes.at(known).member; });
}

void ExcludedNodes::exclude(const NodeId& node, Duration held_up, NodeTable& nodes, Instant now, bool by_configuration) {
  failures_.exclude(node, held_up, exclusion_most, now, by_configuration);
  mark(node, nodes, now);
}

void ExcludedNodes::end(const FailureRecords::Record& record, NodeTable& nodes, Instant now) {
  failures_.end_exclusion(record);
  if (const std::optional<NodeId> id = failures_.holder_of(record)) mark(*id, nodes, now);
}

std::vector<NodeId> ExcludedNodes::retry_due(NodeTable& nodes, Instant now) {
  std::vector<NodeId> here;
  for (const FailureRecords::Record& record : failures_.due(now)) {
    if (const std::optional<NodeId> id = failures_.holder_of(record)) here.push_back(*id);
    end(record, nodes, now);
  }
  return here;
}

void ExcludedNodes::retry(const NodeId& node, NodeTable& nodes, Instant now) { end(failures_.record_of(node), nodes, now); }

std::size_t ExcludedNodes::only_failing(const NodeTable& nodes) const {
  const auto excluded = failures_.excluded();
  return static_cast<std::size_t>(std::count_if(excluded.begin(), excluded.end(), [&](const auto& out) {
    return exclusions_.of(out.first, nodes.at(out.first).join.who.number) == nullptr;
  }));
}

std::map<NodeId, std::set<NodeId>> ExcludedNodes::unreachable(const NodeTable& nodes) const {
  std::map<NodeId, std::set<NodeId>> all;
  for (const auto& [id, node] : nodes.all())
    if (const Exclusion* why = exclusions_.of(id, node.join.who.number); why != nullptr && !why->apart_from.empty())
      all.emplace(id, why->apart_from);
  return all;
}

Duration ExcludedNodes::exclude_unreachable(const NodeId& node, std::string why, std::set<NodeId> apart_from, NodeTable& nodes,
                                            Instant now) {
  const Duration length = exclusions_.exclude(node, nodes.at(node).join.who.number, std::move(why), std::move(apart_from), now);
  mark(node, nodes, now);
  return length;
}

void ExcludedNodes::let_in(const NodeId& node, NodeTable& nodes, Instant now) {
  exclusions_.let_in(node, now);
  mark(node, nodes, now);
}

std::vector<NodeId> ExcludedNodes::let_in_needed(std::size_t needed, const NodeTable& nodes) const {
  if (!exclusions_.any()) return {};
  std::vector<std::pair<Instant, NodeId>> out;
  for (const auto& [id, node] : nodes.all())
    if (const Exclusion* why = exclusions_.of(id, node.join.who.number);
        why != nullptr && node.ready && node.stream && node.join.workers > 0)
      out.emplace_back(why->until, id);
  if (nodes.waiting() + out.size() < needed) return {};
  std::sort(out.begin(), out.end());
  std::vector<NodeId> first;
  for (auto& [until, id] : out) first.push_back(std::move(id));
  return first;
}

std::string ExcludedNodes::why(const NodeTable::Node& node, Instant now) const {
  const Exclusion* const out = exclusions_.of(node.join.who.node, node.join.who.number);
  if (out == nullptr) return failures_.why_excluded(node.join.who.node, now);
  return fmt::format("this node is excluded: {}; it is tried again in {:.0f} s", out->why, std::ceil(seconds(out->until - now)));
}

std::vector<std::string> ExcludedNodes::unreachable_texts(const NodeTable& nodes) const {
  std::vector<std::string> texts;
  for (const auto& [id, node] : nodes.all())
    if (const Exclusion* out = exclusions_.of(id, node.join.who.number)) texts.push_back(fmt::format("{} ({})", id.value(), out->why));
  return texts;
}

}  // namespace elrun::inline v0
