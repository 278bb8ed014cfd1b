#include "rendezvous/round/unreachable_pairs.hpp"

#include <algorithm>
#include <utility>

namespace elrun::inline v0 {

bool UnreachablePairs::note(const NodeId& node, const NodeId& peer, const PeerUnreachable& said, Instant now) {
  const bool is_first = !report_;
  if (is_first) {
    report_ = Report{now, {}, said, node};
    look_at_ = now + apart_gather;
  }
  if (report_->pairs.size() < apart_max) report_->pairs.insert(std::minmax(node, peer));
  return is_first;
}

bool UnreachablePairs::are_certain(const NodeTable& nodes, Duration again, Instant now) {
  if (!report_ || now < look_at_) return false;
  const auto heard_since = [&](const NodeId& id) {
    const NodeTable::Stream* const stream = nodes.stream_of(id);
    return stream != nullptr && (stream->in_process || stream->heard > report_->since);
  };
  for (const auto& [a, b] : report_->pairs)
    if (!heard_since(a) || !heard_since(b)) {
      look_at_ = now + again;
      return false;
    }
  return true;
}

void UnreachablePairs::remove(const NodeId& node) {
  if (!report_) return;
  std::erase_if(report_->pairs, [&](const ApartNodes& pair) { return pair.first == node || pair.second == node; });
  if (report_->pairs.empty()) report_.reset();
}

UnreachablePairs::Report UnreachablePairs::take() { return *std::exchange(report_, {}); }

}  // namespace elrun::inline v0
