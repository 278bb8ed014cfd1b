#include "rendezvous/assign.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace elrun::inline v0 {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the run of digits at the front, without leading zeros.
std::string_view take_number(std::string_view& text) {
  const std::size_t length = std::min(static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin()), text.size());
  std::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
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

  std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    const auto survivor_a = place.find(a.node), survivor_b = place.find(b.node);
    const bool old_a = survivor_a != place.end(), old_b = survivor_b != place.end();
    if (old_a != old_b) return old_a;
    if (old_a) return survivor_a->second < survivor_b->second;
    const auto hint_a = static_cast<std::uint32_t>(a.hint), hint_b = static_cast<std::uint32_t>(b.hint);  // -1: last
    if (hint_a != hint_b) return hint_a < hint_b;
    return natural_less(a.node.value(), b.node.value());
  });

  std::vector<Member> members;
  std::uint32_t base_rank = 0;
  for (Candidate& c : candidates) {
    members.push_back({std::move(c.node), std::move(c.address), c.workers, base_rank, c.master_port});
    base_rank += c.workers;
  }
  return members;
}

}  // namespace elrun::inline v0
