#include "lib/comm/shm/peer_region.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0 {

Result<void> PeerRegion::attach(const Expected& expected, Fd file, Bytes size, Fd doorbell) {
  const auto refused = [](Code code, std::string what) { return Failure{code, Remedy::abort_group, std::move(what)}; };
  const Membership& owner = expected.owner;
  if (is_attached() || !doorbell) return refused(Code::protocol, "shared memory that was not expected");
  if (size.value() < slots_offset(expected.local)) return refused(Code::protocol, "shared memory without room for its lanes");
  ELRUN_TRY_ASSIGN(SharedMemory view, SharedMemory::view(std::move(file), size));
  const auto* const header = reinterpret_cast<const RegionHeader*>(view.data());
  if (header->magic != region_magic || header->size != size.value() || header->rank != owner.rank.value() ||
      header->world != owner.world.value() || header->local != expected.local) {
    return refused(Code::protocol, fmt::format("shared memory that is not rank {}'s", owner.rank.value()));
  }
  if (header->generation != owner.generation.number || header->lineage != owner.generation.lineage.bits) {
    return refused(Code::refused,
                   fmt::format("shared memory of generation {}, which is not {}", header->generation, to_string(owner.generation)));
  }
  header_ = header;
  lane_ = reinterpret_cast<const Lane*>(lane_at(view.data(), expected.reader));
  doorbell_.emplace(std::move(doorbell));
  view_ = std::move(view);
  return {};
}

}  // namespace elrun::inline v0
