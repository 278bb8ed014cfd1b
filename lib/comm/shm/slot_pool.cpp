#include "lib/comm/shm/slot_pool.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace elrun::inline v0 {
namespace {

bool still_reads(const RegionSlot::Reader& reader) { return !reader.peer->has_taken(reader.until) && !reader.peer->is_lost(); }

}  // namespace

SlotPool::SlotPool(std::byte* region, std::size_t offset, std::size_t slot_size, std::size_t slots, std::size_t readers_max)
    : slot_size_{slot_size} {
  for (std::size_t i = 0; i < slots; ++i) {
    const std::size_t at = offset + i * slot_size;
    slots_.push_back({.begin = region + at, .offset = at, .readers = {}});
    slots_.back().readers.reserve(readers_max);
  }
}

RegionSlot* SlotPool::free() {
  const auto slot = std::ranges::find_if(slots_, [](const RegionSlot& each) { return std::ranges::none_of(each.readers, still_reads); });
  return slot == slots_.end() ? nullptr : &*slot;
}

bool SlotPool::waits_for(const PeerLane& peer) const {
  std::ptrdiff_t fewest = std::numeric_limits<std::ptrdiff_t>::max();
  bool is_one = false;
  for (const RegionSlot& slot : slots_) {
    const std::ptrdiff_t left = std::ranges::count_if(slot.readers, still_reads);
    if (left > fewest) continue;
    if (left < fewest) is_one = false;
    fewest = left;
    is_one = is_one || std::ranges::any_of(slot.readers, [&](const auto& each) { return each.peer == &peer && still_reads(each); });
  }
  return is_one;
}

void SlotPool::post(RegionSlot& slot, std::uint64_t length, std::uint64_t total, const CallLabel& label, std::span<PeerLane* const> to) {
  slot.readers.clear();
  for (PeerLane* const peer : to) {
    peer->post({.offset = slot.offset, .length = length}, total, label);
    slot.readers.push_back({peer, peer->posted()});
  }
}

}  // namespace elrun::inline v0
