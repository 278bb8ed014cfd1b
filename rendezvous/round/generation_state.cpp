#include "rendezvous/round/generation_state.hpp"

#include <algorithm>

namespace elrun::inline v0 {

const Member* GenerationState::member(const NodeId& node) const {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.node == node; });
  return found == members_.end() ? nullptr : &*found;
}

const Member& GenerationState::member_of(std::uint32_t rank) const {
  const auto after =
      std::upper_bound(members_.begin(), members_.end(), rank, [](std::uint32_t r, const Member& m) { return r < m.base_rank; });
  return *(after - 1);  // the first one's is 0
}

Seat GenerationState::seat_of(std::uint32_t group_rank) const {
  return {group_rank, members_[group_rank].base_rank, static_cast<std::uint32_t>(members_.size()),
          members_.back().base_rank + members_.back().workers, roster_};
}

void GenerationState::done(const NodeId& node, bool before_session) {
  done_.insert(node);
  if (before_session) unseen_.insert(node);
}

std::optional<NodeId> GenerationState::take_done_before_session() {
  if (unseen_.empty()) return {};
  const NodeId node = *unseen_.begin();
  unseen_.erase(node);
  done_.erase(node);
  return node;
}

bool GenerationState::decided(Instant now) {
  stepped_ = true;
  if (progress_told_ && now - *progress_told_ < progress_told_every) return false;
  progress_told_ = now;
  return true;
}

}  // namespace elrun::inline v0
