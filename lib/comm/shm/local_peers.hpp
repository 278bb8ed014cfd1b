#pragma once
/// \file LocalPeers: which peers of a group this rank reaches through memory, and the lanes to them.

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <elrun/ids.hpp>

#include "lib/comm/shm/lanes.hpp"

namespace elrun::inline v0 {

/// `end` from any thread at any time. `set_lanes` before the communication thread begins, `add` on that thread until the group is connected;
/// from then on, who is reached does not change, and the lanes are the caller's but for `lose` and `end`.
class LocalPeers {
 public:
  explicit LocalPeers(const Membership& me) : me_{me}, reached_(me.world.value(), false) {}
  /// Null: no peer can be reached through memory.
  void set_lanes(std::unique_ptr<Lanes> lanes) {
    const std::lock_guard lock{mutex_};
    lanes_ = std::move(lanes);
  }
  [[nodiscard]] Lanes* lanes() const { return lanes_.get(); }
  void add(Rank peer) { reached_[peer.value()] = true; }

  /// How the bytes of a call with `whom`, or with all peers, travel: both ways, where they differ by peer. None in a world of one.
  struct Ways {
    bool memory = false, frames = false;
  };
  [[nodiscard]] Ways ways_to(std::optional<Rank> whom) const {
    Ways ways;
    for (std::uint32_t rank = 0; rank < reached_.size(); ++rank) {
      if (whom ? Rank{rank} != *whom : Rank{rank} == me_.rank) continue;
      (reached_[rank] ? ways.memory : ways.frames) = true;
    }
    return ways;
  }
  /// There are peers, and all are reached through memory.
  [[nodiscard]] bool are_all() const { return lanes_ != nullptr && !ways_to({}).frames; }

  /// Its connection ended. Without effect for a peer that frames reach.
  void lose(Rank peer) noexcept {
    if (reached_[peer.value()]) lanes_->lose(peer);
  }
  void end() noexcept {
    const std::lock_guard lock{mutex_};
    if (lanes_) lanes_->end();
  }

 private:
  const Membership me_;
  std::mutex mutex_;  // for `end` while the group connects
  std::unique_ptr<Lanes> lanes_;
  std::vector<bool> reached_;  // by rank
};

}  // namespace elrun::inline v0
