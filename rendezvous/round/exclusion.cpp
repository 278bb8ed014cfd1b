#include "rendezvous/round/exclusion.hpp"

#include <algorithm>
#include <tuple>

namespace elrun::inline v0 {

Duration Exclusions::exclude(const NodeId& node, std::uint64_t incarnation, std::string why, std::set<NodeId> apart_from, Instant now) {
  if (all_.size() >= exclusions_max && !all_.contains(node)) {  // drops the oldest entry that is over; one that holds is never dropped
    const auto first = std::min_element(all_.begin(), all_.end(), [](const auto& a, const auto& b) {
      return std::tuple{!a.second.over, a.second.until} < std::tuple{!b.second.over, b.second.until};
    });
    if (first->second.over) all_.erase(first);
  }
  Exclusion& e = all_[node];
  const bool forgotten = e.times > 0 && e.over && now - e.until >= exclusion_forgotten;
  e.times = forgotten ? 1 : e.times + 1;
  Duration length = exclusion_least;
  for (std::uint32_t i = 1; i < e.times && length < exclusion_most; ++i) length *= 2;
  length = ELRUN_PLANTED(excluded_for_good) ? Duration{24h} : std::min(length, exclusion_most);
  e.until = std::max(now + length, e.over ? Instant{} : e.until);
  e.incarnation = incarnation;
  e.over = false;
  e.why = std::move(why);
  e.apart_from = std::move(apart_from);
  return e.until - now;
}

const Exclusion* Exclusions::of(const NodeId& node, std::uint64_t incarnation) const {
  const auto found = all_.find(node);
  return found != all_.end() && !found->second.over && found->second.incarnation == incarnation ? &found->second : nullptr;
}

void Exclusions::let_in(const NodeId& node, Instant now) {
  const auto found = all_.find(node);
  if (found == all_.end() || found->second.over) return;
  found->second.over = true;
  found->second.until = std::min(found->second.until, now);
}

std::vector<NodeId> Exclusions::due(Instant now) const {
  std::vector<NodeId> nodes;
  for (const auto& [node, e] : all_)
    if (!e.over && e.until <= now) nodes.push_back(node);
  return nodes;
}

std::optional<Instant> Exclusions::next() const {
  std::optional<Instant> least;
  for (const auto& [node, e] : all_)
    if (!e.over && (!least || e.until < *least)) least = e.until;
  return least;
}

void Exclusions::gone(const NodeId& node, Instant now) {
  for (auto& [other, e] : all_)
    if (!e.over && e.apart_from.erase(node) > 0 && e.apart_from.empty()) e.until = std::min(e.until, now);
}

bool Exclusions::any() const {
  return std::any_of(all_.begin(), all_.end(), [](const auto& entry) { return !entry.second.over; });
}

std::vector<NodeId> whom_to_exclude(std::set<ApartNodes> apart, const std::vector<NodeId>& order, const std::optional<NodeId>& host) {
  std::vector<NodeId> out;
  while (!apart.empty()) {
    std::map<NodeId, std::size_t> partners;
    for (const auto& [a, b] : apart) ++partners[a], ++partners[b];
    const auto weight = [&](const auto& entry) {
      const auto place = std::find(order.begin(), order.end(), entry.first) - order.begin();
      return std::tuple{entry.second, entry.first != host, place};
    };
    const NodeId next =
        std::max_element(partners.begin(), partners.end(), [&](const auto& a, const auto& b) { return weight(a) < weight(b); })->first;
    if (ELRUN_PLANTED(a_third_is_excluded)) return {order.back()};
    if (ELRUN_PLANTED(both_of_a_pair_are_excluded)) return {apart.begin()->first, apart.begin()->second};
    std::erase_if(apart, [&](const ApartNodes& pair) { return pair.first == next || pair.second == next; });
    out.push_back(next);
  }
  return out;
}

std::set<NodeId> Separation::partners_of(const NodeId& node) const {
  std::set<NodeId> partners;
  for (const auto& [a, b] : pairs)
    if (a == node || b == node) partners.insert(a == node ? b : a);
  return partners;
}

Separation separate(std::set<ApartNodes> reported, const std::map<NodeId, std::set<NodeId>>& excluded, const std::vector<NodeId>& order,
                    const std::optional<NodeId>& host) {
  Separation result{std::move(reported), {}, {}};
  for (const auto& [node, partners] : excluded) {
    for (const NodeId& partner : partners) result.pairs.insert(std::minmax(node, partner));
    result.coming_back.insert(node);
  }
  result.out = whom_to_exclude(result.pairs, order, host);
  std::erase_if(result.out, [&](const NodeId& id) { return result.coming_back.erase(id) > 0; });  // it stays out
  return result;
}

}  // namespace elrun::inline v0
