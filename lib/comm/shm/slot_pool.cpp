#include "lib/comm/shm/slot_pool.hpp"

#include <algorithm>

namespace elrun::inline v0 {

SlotPool::SlotPool(std::byte* region, std::size_t offset, std::size_t slot_size, std::size_t slots, std::size_t readers_max)
    : slot_size_{slot_size} {
  for (std::size_t i = 0; i < slots; ++i) {
    const std::size_t at = offset + i * slot_size;
    slots_.push_back({.begin = region + at, .offset = at, .readers = {}});
    slots_.back().readers.reserve(readers_max);
  }
}

RegionSlot* SlotPool::free() {
  const auto slot = std::ranges::find_if(slots_, [](const RegionSlot& each) {
    return std::ranges::all_of(
        each.readers, [](const RegionSlot::Reader& reader) { return reader.peer->has_taken(reader.until) || reader.peer->is_lost(); });
  });
  return slot == slots_.end() ? nullptr : &*slot;
}

void SlotPool::post(RegionSlot& slot, std::uint64_t length, std::uint64_t total, const CallLabel& label, std::span<PeerLane* const> to) {
  slot.readers.clear();
  for (PeerLane* const peer : to) {
    peer->post({.offset = slot.offset, .length = length}, total, label);
    slot.readers.push_back({peer, peer->posted()});
  }
}

}  // namespace elrun::inline v0
