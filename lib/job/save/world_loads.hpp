#pragma once
/// \file WorldLoads: the ranks of a world, for a load of all of them together.

#include <span>
#include <vector>

#include "checkpoint/load/load_group.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

class WorldLoads final : public LoadGroup {
 public:
  explicit WorldLoads(JobWorld& world) : world_{world} {}
  [[nodiscard]] std::uint32_t rank() const override { return world_.rank(); }
  [[nodiscard]] std::uint32_t size() const override { return world_.size(); }
  Result<void> agree(const Result<void>& mine) override { return world_.agree(mine); }
  Result<std::vector<ByteVector>> all_gather(ByteSpan mine) override { return world_.all_gather(mine); }
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
    return world_.exchange(sends, receives);
  }

 private:
  JobWorld& world_;
};

}  // namespace elrun::inline v0
