#include "rendezvous/round/assign.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the run of digits at the front, without leading zeros.
std::string_view take_number(std::string_view& text) {
  const std::size_t length =
      std::min(static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin()), text.size());
  std::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

// Puts the nodes of one zone side by side, in each zone those of one rack, and so on; what came first stays first.
void group_by_topology(std::vector<Candidate>& candidates) {
  std::map<std::string, std::size_t> first_seen;  // of "zone", "zone/rack", ...
  std::map<NodeId, std::vector<std::size_t>> place;
  for (const Candidate& c : candidates) {
    std::vector<std::size_t>& path = place[c.node];
    for (std::size_t end = c.topology.find('/');; end = c.topology.find('/', end + 1)) {
      path.push_back(first_seen.try_emplace(c.topology.substr(0, end), first_seen.size()).first->second);
      if (end == std::string::npos) break;
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& a, const Candidate& b) { return place.at(a.node) < place.at(b.node); });
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a), y = take_number(b);
      if (x != y) return std::tuple{x.size(), x} < std::tuple{y.size(), y};  // no leading zeros: longer is larger
    } else if (a.front() != b.front()) {
      return a.front() < b.front();
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // equal but for leading zeros: still an order
}

std::vector<Member> assign(std::vector<Candidate> candidates, const std::vector<Member>& before, bool fixed) {
  std::map<NodeId, std::size_t> place;
  for (std::size_t i = 0; i < before.size(); ++i) place.emplace(before[i].node, i);
  std::set<std::int32_t> hints;
  for (const Candidate& c : candidates)
    if (c.hint >= 0) hints.insert(c.hint);
  if (fixed && hints.size() == candidates.size()) place.clear();

  // Each name is looked up once, not at each comparison, and light things are sorted: there may be 100,000 nodes.
  struct Entry {
    std::size_t place;  // behind all survivors for newcomers
    Candidate* candidate;
  };
  std::vector<Entry> entries;
  entries.reserve(candidates.size());
  for (Candidate& c : candidates) {
    const auto survivor = place.find(c.node);
    entries.push_back({survivor != place.end() ? survivor->second : before.size(), &c});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    if (a.place != b.place) return a.place < b.place;
    const auto hint_a = static_cast<std::uint32_t>(a.candidate->hint), hint_b = static_cast<std::uint32_t>(b.candidate->hint);  // -1: last
    if (hint_a != hint_b) return hint_a < hint_b;
    return natural_less(a.candidate->node.value(), b.candidate->node.value());
  });
  std::vector<Candidate> sorted;
  sorted.reserve(candidates.size());
  for (const Entry& entry : entries) sorted.push_back(std::move(*entry.candidate));
  candidates = std::move(sorted);

  const bool as_given = fixed && hints.size() == candidates.size();
  const bool any_label = std::any_of(candidates.begin(), candidates.end(), [](const Candidate& c) { return !c.topology.empty(); });
  if (any_label && !as_given) group_by_topology(candidates);

  std::vector<Member> members;
  members.reserve(candidates.size());
  std::uint32_t base_rank = 0;
  std::map<std::string, std::uint32_t> workers_of_role;
  for (Candidate& c : candidates) {
    members.push_back({std::move(c.node), std::move(c.address), c.workers, base_rank, c.master_port, {workers_of_role[c.role], 0}});
    workers_of_role[c.role] += c.workers;
    base_rank += ELRUN_PLANTED(base_ranks_overlap) ? std::min(c.workers, 1u) : c.workers;
  }
  for (std::size_t i = 0; i < members.size(); ++i) members[i].role.world_size = workers_of_role.at(candidates[i].role);
  return members;
}

std::optional<std::string> same_hints(const std::vector<Candidate>& candidates) {
  std::map<std::int32_t, const NodeId*> nodes;
  for (const Candidate& c : candidates) {
    if (c.hint < 0) continue;
    if (const auto [other, fresh] = nodes.try_emplace(c.hint, &c.node); !fresh)
      return fmt::format(
          "nodes {} and {} both have the node rank {} (--node_rank, or the number in the host's name): they are ranked by name; give each its own",
          other->second->value(), c.node.value(), c.hint);
  }
  return {};
}

std::uint64_t roster_hash(const std::vector<Member>& members) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits: an agreement check among members, not a proof
  const auto add = [&](const void* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3u;
  };
  const auto add_number = [&](std::uint32_t number) {
    const unsigned char bytes[] = {static_cast<unsigned char>(number), static_cast<unsigned char>(number >> 8),
                                   static_cast<unsigned char>(number >> 16), static_cast<unsigned char>(number >> 24)};
    add(bytes, sizeof bytes);
  };
  for (const Member& m : members) {
    for (const std::string* text : {&m.node.value(), &m.address}) {
      add_number(static_cast<std::uint32_t>(text->size()));
      add(text->data(), text->size());
    }
    for (const std::uint32_t number : {m.workers, m.base_rank, std::uint32_t{m.master_port}}) add_number(number);
  }
  return hash;
}

}  // namespace elrun::inline v0
