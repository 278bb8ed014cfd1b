#pragma once
/// \file Vector clocks: what has happened before what. An actor is a stream, or the host; its operations are counted from 1.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fakegpu {

using Actor = std::uint32_t;
/// The host: all its threads. What one thread has waited for happened before whatever any thread enqueues later.
inline constexpr Actor host_actor = 0;

class Clock {
 public:
  /// The last operation of `actor` that is known to have ended before.
  [[nodiscard]] std::uint32_t at(Actor actor) const { return actor < seen_.size() ? seen_[actor] : 0; }
  void join(const Clock& other) {
    if (seen_.size() < other.seen_.size()) seen_.resize(other.seen_.size());
    for (std::size_t i = 0; i < other.seen_.size(); ++i) seen_[i] = std::max(seen_[i], other.seen_[i]);
  }
  void set(Actor actor, std::uint32_t operation) {
    if (seen_.size() <= actor) seen_.resize(actor + 1);
    seen_[actor] = operation;
  }
  std::uint32_t advance(Actor actor) {
    set(actor, at(actor) + 1);
    return at(actor);
  }

 private:
  std::vector<std::uint32_t> seen_;
};

}  // namespace fakegpu
