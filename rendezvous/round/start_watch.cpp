#include "rendezvous/round/start_watch.hpp"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/words.hpp"

namespace elrun::inline v0 {

bool StartWatch::note(const NodeId& node, const WorkersStarting& said, Instant began, Duration delay, Instant now) {
  bool was_last = false;
  if (said.count == 0) {
    was_last = starting_.erase(node) > 0 && starting_.empty() && reported_;
  } else {
    starting_[node] = {said.rank, said.count, said.opened, said.watched, std::max(now - said.ago, began)};
    if (!tell_at_) tell_at_ = now + delay;
  }
  if (starting_.empty()) reported_ = false, tell_at_.reset();
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

std::string StartWatch::text(const Generation& generation, std::size_t waiting, bool can_spare, bool has_trained, Duration limit,
                             Instant now) const {
  const std::optional<Instant> over = first_limit(limit);
  const bool watched = std::any_of(starting_.begin(), starting_.end(), [](const auto& entry) { return entry.second.watched; });
  const std::string then = over && can_spare ? fmt::format("if that lasts another {:.0f} s, the others go on without {}",
                                                           std::ceil(seconds(*over - now)), starting_.size() == 1 ? "that node" : "them")
                           : watched         ? "its node ends it after its --hang_timeout"
                           : !has_trained
                               ? "no step is decided yet, so no limit applies (--hang_timeout sets one)"
                               : "without it fewer nodes than the minimum would be left, so no limit applies (--hang_timeout sets one)";
  return fmt::format("generation {}: {} {} for {}; {}", to_string(generation), count_of(waiting, "node"), waiting == 1 ? "waits" : "wait",
                     some_of(described(now)), then);
}

}  // namespace elrun::inline v0
