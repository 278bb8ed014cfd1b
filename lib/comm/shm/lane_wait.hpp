#pragma once
/// \file LaneWait: how a rank waits for the peers of its host: until something is there, a peer that it needs is lost, the generation is over, or
/// the call's time is.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/result.hpp>

#include "lib/base/clock.hpp"
#include "lib/comm/call_limit.hpp"
#include "lib/comm/shm/doorbell.hpp"
#include "lib/comm/shm/peer_lane.hpp"
#include "lib/comm/shm/region.hpp"

namespace elrun::inline v0 {

[[nodiscard]] Failure generation_is_over();

/// First it looks a few times, for a peer is mostly quick; then it sleeps until its doorbell rings. It says in its region that it sleeps, so that
/// peers ring only then. `end` from any thread, all else from the thread that makes the calls.
class LaneWait {
 public:
  /// `header`: of this rank's region; it outlives this. `ranks`: of the host, which share its cores.
  LaneWait(RegionHeader& header, Doorbell doorbell, std::size_t ranks);

  [[nodiscard]] const Doorbell& doorbell() const { return doorbell_; }
  /// A call begins.
  [[nodiscard]] CallLimit begin(Duration limit) const { return CallLimit::from(clock_.now(), limit); }
  [[nodiscard]] bool is_over() const { return over_.load(); }
  /// For a loop that finds something to do each time, and so never waits: fails once the call's time is over. It looks at the clock each 64th time.
  [[nodiscard]] Result<void> in_time(const CallLimit& limit) {
    if (++steps_ % 64 != 0 || !limit.at.passed(clock_.now())) return {};
    return late(limit.whole);
  }
  /// Every wait ends now, with `generation_over`; later ones, too, unless what they wait for is there.
  void end() noexcept;

  /// Until `ready()`, or until there is a reason why it never will be. `needed(peer)`: this peer would have to do something first. What a peer
  /// posted before it was lost counts.
  template <class Ready, class Needed>
  Result<void> until(Ready ready, Needed needed, std::span<PeerLane* const> peers, const CallLimit& limit) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return {};
      pause();
    }
    for (int i = 0; i < yields_; ++i) {
      std::this_thread::yield();
      if (ready()) return {};
    }
    for (;;) {
      header_.asleep.store(1);
      // First who is gone, then what is there: what a peer posted before it went counts.
      const auto gone = std::ranges::find_if(peers, [&](const PeerLane* peer) { return peer->is_lost() && needed(*peer); });
      const bool over_now = over_.load();
      const bool is_ready = ready();
      const Duration left = limit.at.left(clock_.now());
      if (!is_ready && !over_now && gone == peers.end() && left > Duration{0}) doorbell_.wait(left);
      header_.asleep.store(0, std::memory_order_relaxed);
      if (is_ready) return {};
      if (over_now) return generation_is_over();
      if (gone != peers.end()) return peer_gone((*gone)->rank());
      if (left > Duration{0}) continue;
      std::vector<Rank> missing;
      for (const PeerLane* const peer : peers)
        if (needed(*peer)) missing.push_back(peer->rank());
      return late(limit.whole, std::move(missing));
    }
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  static Failure peer_gone(Rank peer);
  static Failure late(Duration limit);
  static Failure late(Duration limit, std::vector<Rank> missing);

  SteadyClock clock_;
  RegionHeader& header_;
  const Doorbell doorbell_;
  std::atomic<bool> over_{false};
  int spins_ = 0, yields_ = 0;
  std::uint32_t steps_ = 0;
};

}  // namespace elrun::inline v0
