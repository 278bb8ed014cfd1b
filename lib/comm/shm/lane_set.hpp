#pragma once
/// \file LaneSet: the region of one rank, its peers on this host, and its slots. What transfers and reductions through memory have in common.
///
/// Slots are where bytes wait that peers are to read. The rank copies them there once, whatever the number of readers, and posts the slot as a
/// chunk in the lanes of the readers. A shared buffer needs no slot: the chunk names the buffer, and peers read it in place.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/base/clock.hpp"
#include "lib/comm/label.hpp"
#include "lib/comm/shm/buffer_registry.hpp"
#include "lib/comm/shm/doorbell.hpp"
#include "lib/comm/shm/peer_lane.hpp"
#include "lib/comm/shm/region.hpp"
#include "lib/comm/shm/shared_memory.hpp"

namespace elrun::inline v0 {

constexpr std::size_t step_most = 1 << 20;  ///< Read at once out of a shared buffer; then one looks whether all is over.

struct CallLimit {
  Deadline at;
  Duration whole;
};

/// A place for bytes in this rank's region, and the peers that still have to take what is there.
struct RegionSlot {
  struct Reader {
    const PeerLane* peer = nullptr;
    std::uint64_t until = 0;  // it has read the slot once it has taken so many chunks
  };
  std::size_t offset = 0;
  std::vector<Reader> readers;
};

/// One class although it has many methods: they are the short words of which ListTransfer and Reduction are written.
/// `end` from any thread, all else from the thread that makes the calls.
class LaneSet {
 public:
  /// `local`: the ranks of this host, in rising order.
  static Result<std::unique_ptr<LaneSet>> make(const Membership& me, std::vector<Rank> local);
  LaneSet(const Membership& me, std::vector<Rank> local, SharedMemory region, Doorbell doorbell, std::size_t slot_size, std::size_t slots);

  [[nodiscard]] const Membership& me() const { return me_; }
  [[nodiscard]] std::size_t slot_size() const { return slot_size_; }
  [[nodiscard]] std::size_t slots() const { return slots_.size(); }
  [[nodiscard]] const SharedMemory& region() const { return region_; }
  [[nodiscard]] const Doorbell& doorbell() const { return doorbell_; }
  /// A peer of this host; null: it is none.
  [[nodiscard]] PeerLane* find(Rank rank);
  /// The peers that are attached. Each rank's list begins after itself, so that not all turn to the same peer first.
  [[nodiscard]] std::span<PeerLane* const> peers() const { return attached_; }
  Result<void> attach(Rank peer, Fd region, Bytes size, Fd doorbell, Fd post);
  Result<void> share(const std::shared_ptr<const void>& owner, const SharedMemory& memory);

  // --- a call ---

  CallLimit begin(Duration limit, const CallLabel& label);
  [[nodiscard]] const CallLabel& label() const { return label_; }
  [[nodiscard]] bool is_over() const { return over_.load(); }
  [[nodiscard]] static Failure over() {
    return {.code = Code::generation_over, .remedy = Remedy::rejoin, .what = "the generation is over"};
  }
  /// Every call ends now.
  void end() noexcept;
  /// The last thing of a call: if it failed, what peers could read in place is its caller's again, who may write there.
  [[nodiscard]] Result<void> or_withdraw(Result<void> result);
  /// Peers have read what they could read in place in this call.
  Result<void> until_taken(const CallLimit& limit);

  // --- posting ---

  [[nodiscard]] std::byte* at(const RegionSlot& slot) const { return region_.data() + slot.offset; }
  [[nodiscard]] RegionSlot* free_slot();
  /// A free slot, and room for it in the lanes of these peers.
  Result<RegionSlot*> wait_for_slot(std::span<PeerLane* const> to, const CallLimit& limit);
  /// Room for one more chunk in the lanes of these peers.
  Result<void> wait_for_room(std::span<PeerLane* const> to, const CallLimit& limit);
  void post(RegionSlot& slot, std::uint64_t length, std::uint64_t total, std::span<PeerLane* const> to);
  /// Where peers find this piece in a shared buffer; nothing: it has to be copied into slots.
  [[nodiscard]] std::optional<BufferPlace> shared_place(std::span<const std::byte> piece) const { return buffers_.place_of(piece); }
  [[nodiscard]] bool has_shared_buffers() const { return !buffers_.empty(); }
  void post_shared(const BufferPlace& place, std::uint64_t length, std::uint64_t total, std::span<PeerLane* const> to);

  // --- receiving ---

  /// The next chunk of this peer, which has `length` bytes.
  Result<std::span<const std::byte>> expect(PeerLane& peer, std::uint64_t length, const CallLimit& limit);
  Result<void> wait_for_chunk(const PeerLane& peer, const CallLimit& limit);
  /// The peer's next chunk to the places of `peer.pending`, or as much of it as may be copied before looking around. `streaming`: past the caches.
  Result<void> copy_step(PeerLane& peer, bool streaming);

  /// Until `ready()`, or until there is a reason why it never will be. `needed(peer)`: this peer would have to do something first.
  template <class Ready, class Needed>
  Result<void> wait(const CallLimit& limit, Ready ready, Needed needed) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return {};
      pause();
    }
    for (int i = 0; i < yields_; ++i) {
      std::this_thread::yield();
      if (ready()) return {};
    }
    for (;;) {
      header_->asleep.store(1);
      // First who is gone, then what is there: what a peer posted before it went counts.
      const auto gone = std::ranges::find_if(attached_, [&](const PeerLane* peer) { return peer->is_lost() && needed(*peer); });
      const bool over_now = over_.load();
      const bool is_ready = ready();
      const Duration left = limit.at.left(clock_.now());
      if (!is_ready && !over_now && gone == attached_.end() && left > Duration{0}) doorbell_.wait(left);
      header_->asleep.store(0, std::memory_order_relaxed);
      if (is_ready) return {};
      if (over_now) return over();
      if (gone != attached_.end()) return peer_gone((*gone)->rank());
      if (left > Duration{0}) continue;
      std::vector<Rank> missing;
      for (const PeerLane* const peer : attached_)
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
  static Failure late(Duration limit, std::vector<Rank> missing);
  [[nodiscard]] std::size_t index_of(Rank rank) const;

  SteadyClock clock_;
  const Membership me_;
  const std::vector<Rank> local_;
  SharedMemory region_;
  const Doorbell doorbell_;
  const std::size_t slot_size_;
  RegionHeader* header_ = nullptr;
  std::vector<PeerLane> peers_;
  std::vector<PeerLane*> attached_;
  std::vector<RegionSlot> slots_;
  OwnBuffers buffers_;
  CallLabel label_;
  std::atomic<bool> over_{false};
  int spins_ = 0, yields_ = 0;
};

/// The bytes to the next places of `to`.
void copy_out(std::span<const std::byte> from, Cursor<std::span<std::byte>>& to, bool streaming);

}  // namespace elrun::inline v0
