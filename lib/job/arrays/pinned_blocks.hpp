#pragma once
/// \file PinnedBlocks: pinned memory that grows by blocks, and is kept as long as its owner: CUDA's call that frees some waits for all that the device has to do.

#include <cstddef>
#include <span>
#include <vector>

#include "lib/base/clock.hpp"
#include "lib/device/handles.hpp"

namespace elrun::inline v0 {

/// Used by one thread at a time.
class PinnedBlocks {
 public:
  static constexpr std::size_t block_bytes = std::size_t{8} << 20;
  PinnedBlocks() = default;
  /// `clock` outlives it. Throws Error.
  PinnedBlocks(Device device, const Clock& clock) : clock_{&clock}, device_{device}, used_{device} {}
  PinnedBlocks(PinnedBlocks&&) = default;
  PinnedBlocks& operator=(PinnedBlocks&&) = delete;
  /// Waits 2 s for the last to use it. Then it is kept until the process ends, for what hangs may use it later.
  ~PinnedBlocks();

  /// Forgets what was taken.
  void begin() { block_ = 0, offset_ = 0; }
  /// Up to `most` bytes in one piece, and `most` where that fits into what is left of a block. Throws Error (`exhausted`).
  [[nodiscard]] std::span<std::byte> take(std::size_t most);
  /// What `stream` was given so far is the last to use it. Throws Error.
  void record(Stream stream) { used_.record(stream); }
  [[nodiscard]] Event used() const { return used_.view(); }

 private:
  const Clock* clock_ = nullptr;
  Device device_{};
  OwnedEvent used_;
  std::vector<PinnedBuffer> blocks_;
  std::size_t block_ = 0, offset_ = 0;
};

}  // namespace elrun::inline v0
