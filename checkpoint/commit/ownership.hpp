#pragma once
/// \file Core: what a start has claimed and found, for another process that commits under the same fence.

#include <vector>

#include "checkpoint/format/names.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

struct Ownership {
  FenceNumber fence = 0;                 ///< 0: none is claimed, and no save is possible.
  std::vector<CheckpointId> timeline{};  ///< Inherited by the fence, then committed by it, oldest first.
  std::vector<CheckpointId> whole{};     ///< Of these: those that were looked into, or made.
  std::vector<GivenUp> gives_up{};       ///< By this fence and those before it.
  friend bool operator==(const Ownership&, const Ownership&) = default;
};

}  // namespace elrun::inline v0
