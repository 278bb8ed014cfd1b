#pragma once
/// \file StagedExchange: device memory goes through pinned memory of the host, and over the host transport. Works between any two ranks, also of one device.

#include <string_view>
#include <vector>

#include "lib/job/arrays/array_exchange.hpp"
#include "lib/job/arrays/pinned_blocks.hpp"

namespace elrun::inline v0 {

/// Its pinned memory is as large as the largest exchange of this rank: what it sends, and what it receives.
class StagedExchange final : public ArrayExchange {
 public:
  /// `device`: of the memory in which the lists lie. `clock` outlives this. Throws Error.
  StagedExchange(Device device, const Clock& clock);
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const ArrayCall& call) override;

 private:
  [[nodiscard]] Result<void> wait(Event event, std::string_view what, const ArrayCall& call) const;
  const Device device_;
  const Clock& clock_;
  PinnedBlocks out_, in_;
  // Of the host, by rank; kept between calls, so that one allocates nothing once the largest was made.
  std::vector<SendList> sends_;
  std::vector<ReceiveList> receives_;
};

}  // namespace elrun::inline v0
