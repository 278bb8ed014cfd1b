#include "rendezvous/round/start_watch.hpp"

#include <fmt/format.h>

#include "lib/base/words.hpp"

namespace elrun::inline v0 {

bool StartWatch::note(const NodeId& node, const WorkersStarting& said, Instant began, Duration delay, Instant now) {
  bool was_last = false;
  if (said.count == 0) {
    was_last = starting_.erase(node) > 0 && starting_.empty() && told_;
  } else {
    starting_[node] = {said.rank, said.count, said.opened, said.watched, std::max(now - said.ago, began)};
    if (!tell_at_) tell_at_ = now + delay;
  }
  if (starting_.empty()) told_ = false, tell_at_.reset();
  return was_last;
}

std::set<NodeId> StartWatch::nodes() const {
  std::set<NodeId> nodes;
  for (const auto& [id, starting] : starting_) nodes.insert(id);
  return nodes;
}

std::vector<NodeId> StartWatch::late(Duration limit, Duration soon, Instant now) const {
  std::vector<NodeId> late;
  if (std::none_of(starting_.begin(), starting_.end(), [&](const auto& entry) { return entry.second.is_over(now, limit); })) return late;
  for (const auto& [id, starting] : starting_)
    if (starting.is_over(now + soon, limit)) late.push_back(id);
  return late;
}

std::optional<Instant> StartWatch::first_limit(Duration limit) const {
  std::optional<Instant> first;
  for (const auto& [id, starting] : starting_)
    if (!starting.watched) first = std::min(first.value_or(Instant::max()), starting.since + limit);
  return first;
}

std::vector<std::string> StartWatch::described(Instant now) const {
  std::vector<std::string> all;
  for (const auto& [id, s] : starting_)
    all.push_back(fmt::format("rank {} of node {} ({}started {:.0f} s ago, {})", s.rank, id.value(),
                              s.count > 1 ? fmt::format("and {} more there; ", s.count - 1) : "", seconds(now - s.since),
                              s.opened ? "has opened its session and not asked for its peers" : "has not opened its session"));
  return all;
}

}  // namespace elrun::inline v0
