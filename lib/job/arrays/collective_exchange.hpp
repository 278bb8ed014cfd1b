#pragma once
/// \file CollectiveExchange: from device to device, by a group on device memory (NCCL).

#include <memory>
#include <vector>

#include "lib/comm/device_collectives.hpp"
#include "lib/job/arrays/array_exchange.hpp"

namespace elrun::inline v0 {

/// Lists of two ranks agree piece by piece. Each call waits until its Work is over: only that says that what came is good, where a stream behind a call that was aborted runs on over
/// garbage (device_collectives.hpp).
class CollectiveExchange final : public ArrayExchange {
 public:
  /// `clock` outlives this.
  CollectiveExchange(std::unique_ptr<DeviceCollectives> group, const Clock& clock) : group_{std::move(group)}, clock_{clock} {}
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const ArrayCall& call) override;
  void revoke(const Failure& why) override { group_->revoke(why); }

 private:
  const std::unique_ptr<DeviceCollectives> group_;
  const Clock& clock_;
  std::vector<DeviceSendList> sends_;  // by rank; kept between calls
  std::vector<DeviceReceiveList> receives_;
};

}  // namespace elrun::inline v0
