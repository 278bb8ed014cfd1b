#pragma once
/// \file SlotPool: the places of this rank's region where bytes wait that peers are to read.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/comm/label.hpp"
#include "lib/comm/shm/peer_lane.hpp"

namespace elrun::inline v0 {

/// A place for bytes in this rank's region, and the peers that still have to take what is there.
struct RegionSlot {
  struct Reader {
    const PeerLane* peer = nullptr;
    std::uint64_t until = 0;  // it has read the slot once it has taken so many chunks
  };
  std::byte* begin = nullptr;
  std::uint64_t offset = 0;  // of `begin` in the region
  std::vector<Reader> readers;
};

/// All slots have `slot_size` bytes. A slot is free once each of its readers has taken what was posted, or is lost. Nothing is said to the pool
/// when that happens: it asks the lanes. Peers outlive it. Allocates in the constructor alone. One thread.
class SlotPool {
 public:
  /// `offset`: where the slots begin in the region. `readers_max`: of one slot.
  SlotPool(std::byte* region, std::size_t offset, std::size_t slot_size, std::size_t slots, std::size_t readers_max);
  [[nodiscard]] std::size_t slot_size() const { return slot_size_; }
  [[nodiscard]] std::size_t size() const { return slots_.size(); }
  /// The first free slot; null: there is none.
  [[nodiscard]] RegionSlot* free();
  /// No slot is free, and this peer is among the fewest that have to take what is in one of them. Others may wait themselves.
  [[nodiscard]] bool waits_for(const PeerLane& peer) const;
  /// The first `length` bytes of a slot that was free, as the next chunk of each of these peers. There is room in their lanes.
  void post(RegionSlot& slot, std::uint64_t length, std::uint64_t total, const CallLabel& label, std::span<PeerLane* const> to);

 private:
  std::size_t slot_size_;
  std::vector<RegionSlot> slots_;
};

}  // namespace elrun::inline v0
