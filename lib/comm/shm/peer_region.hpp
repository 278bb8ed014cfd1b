#pragma once
/// \file PeerRegion: the region of a peer as this rank maps it, for reading, and that peer's doorbell.

#include <cstddef>
#include <cstdint>
#include <optional>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

#include "lib/base/fd.hpp"
#include "lib/comm/shm/doorbell.hpp"
#include "lib/comm/shm/region.hpp"
#include "lib/comm/shm/shared_memory.hpp"

namespace elrun::inline v0 {

/// Attached once, after everything that the peer says of itself was checked; until then `is_attached` alone may be called. A failed `attach`
/// leaves it as it was. What the peer writes later is not checked here: whoever reads a chunk judges it. One thread.
class PeerRegion {
 public:
  struct Expected {
    Membership owner;        ///< Whose region it has to be.
    std::size_t local = 0;   ///< Ranks of the host.
    std::size_t reader = 0;  ///< This rank's index among them.
  };
  /// Fails with `refused` where it is a region of another generation, with `protocol` where it is none of that rank in that world.
  Result<void> attach(const Expected& expected, Fd file, Bytes size, Fd doorbell);
  [[nodiscard]] bool is_attached() const { return static_cast<bool>(view_); }

  /// All of it: chunks lie in it by their offset.
  [[nodiscard]] const SharedMemory& memory() const { return view_; }
  /// What the peer posts to this rank, and what it took from it.
  [[nodiscard]] const Lane& lane() const { return *lane_; }
  /// The peer's shared buffers are its program's again.
  [[nodiscard]] bool is_withdrawn() const { return header_->withdrawn.load() != 0; }
  /// After a counter was moved: rings if the peer sleeps.
  void wake() const {
    if (header_->asleep.load() != 0) doorbell_->ring();
  }

 private:
  SharedMemory view_;
  const RegionHeader* header_ = nullptr;
  const Lane* lane_ = nullptr;
  std::optional<Doorbell> doorbell_;
};

}  // namespace elrun::inline v0
