#pragma once
/// \file StagedExchange: device memory goes through pinned memory of the host, and over the host transport. Works between any two ranks, also of one device.

#include <vector>

#include "lib/device/handles.hpp"
#include "lib/job/arrays/array_exchange.hpp"

namespace elrun::inline v0 {

/// Pinned memory that grows by blocks, and is kept from one call to the next: CUDA's call that frees some waits for all that the device has to do.
class PinnedBlocks {
 public:
  PinnedBlocks() = default;
  explicit PinnedBlocks(Device device) : device_{device}, used_{device} {}
  PinnedBlocks(PinnedBlocks&&) = default;
  PinnedBlocks& operator=(PinnedBlocks&&) = default;

  /// Forgets what was taken.
  void begin() { block_ = 0, offset_ = 0; }
  /// Up to `most` bytes in one piece. Throws Error (`exhausted`).
  [[nodiscard]] std::span<std::byte> take(std::size_t most);
  /// What `stream` was given so far is the last to use them.
  void record(Stream stream) { used_.record(stream); }
  [[nodiscard]] Event used() const { return used_.view(); }
  /// They are not given back before the process ends: work that hangs may use them.
  void keep_for_good();

 private:
  Device device_{};
  OwnedEvent used_;
  std::vector<PinnedBuffer> blocks_;
  std::size_t block_ = 0, offset_ = 0;
};

/// Its pinned memory is as large as the largest exchange of this rank: what it sends, and what it receives.
class StagedExchange final : public ArrayExchange {
 public:
  /// `stream`: of the memory in which the lists lie. It and `clock` outlive this. Throws Error.
  StagedExchange(Stream stream, const Clock& clock);
  ~StagedExchange() override;
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const ArrayCall& call) override;

 private:
  [[nodiscard]] Result<void> wait(Event event, std::string_view what, const ArrayCall& call) const;
  const Stream stream_;
  const Clock& clock_;
  PinnedBlocks out_, in_;
  // Of the host, by rank; kept between calls, so that one allocates nothing once the largest was made.
  std::vector<SendList> sends_;
  std::vector<ReceiveList> receives_;
};

}  // namespace elrun::inline v0
