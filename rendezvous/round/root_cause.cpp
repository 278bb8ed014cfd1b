#include "rendezvous/round/root_cause.hpp"

#include <algorithm>
#include <utility>

namespace elrun::inline v0 {
namespace {

auto of_worker(const NodeId& node, std::uint32_t local_rank) {
  return [&node, local_rank](const RootCause::Death& d) { return d.worker.node == node && d.worker.local_rank == local_rank; };
}

}  // namespace

void RootCause::report(Death death) {
  const auto same = std::find_if(deaths_.begin(), deaths_.end(), of_worker(death.worker.node, death.worker.local_rank));
  if (same != deaths_.end()) {
    if (!same->lived || death.lived) return;
    death.at = same->at;
    *same = std::move(death);
  } else {
    const auto later = [](const Death& a, const Death& b) { return a.at < b.at; };
    deaths_.insert(std::upper_bound(deaths_.begin(), deaths_.end(), death, later), std::move(death));
  }
  for (std::size_t i = 1; i < deaths_.size(); ++i)
    deaths_[i].worker = bounded(std::move(deaths_[i].worker), death_beside_max, death_beside_max);
  if (deaths_.size() > deaths_max) deaths_.pop_back();
}

std::optional<RootCause::Death> RootCause::take(const NodeId& node, std::uint32_t local_rank) {
  const auto same = std::find_if(deaths_.begin(), deaths_.end(), of_worker(node, local_rank));
  if (same == deaths_.end()) return {};
  std::optional<Death> death{std::move(*same)};
  deaths_.erase(same);
  return death;
}

const RootCause::Death* RootCause::find(const NodeId& node, std::uint32_t local_rank) const {
  const auto same = std::find_if(deaths_.begin(), deaths_.end(), of_worker(node, local_rank));
  return same == deaths_.end() ? nullptr : &*same;
}

std::vector<WorkerDeath> RootCause::workers() const {
  std::vector<WorkerDeath> workers;
  workers.reserve(deaths_.size());
  for (const Death& death : deaths_) workers.push_back(death.worker);
  return workers;
}

bool RootCause::explains(const NodeId& lost) {
  if (!suspects_.contains(lost) || deaths_.empty()) return false;
  suspects_.clear();
  return true;
}

}  // namespace elrun::inline v0
