#pragma once
/// \file NcclCollectives: collectives on device memory, by NCCL. Only sources of this folder include it.

#include <memory>

#include "lib/comm/device_collectives.hpp"
#include "lib/comm/nccl/communicator.hpp"

namespace elrun::inline v0 {

class NcclCollectives final : public DeviceCollectives {
 public:
  NcclCollectives(const Membership& membership, Device device, std::unique_ptr<NcclCommunicator> communicator)
      : membership_{membership}, device_{device}, communicator_{std::move(communicator)} {}
  [[nodiscard]] Device device() const override { return device_; }
  Work all_reduce(std::byte* data, std::uint64_t count, DType type, ReduceOp op, const DeviceCall& call) override;
  Work reduce_scatter(const std::byte* in, std::uint64_t in_count, std::byte* out, std::uint64_t out_count, DType type, ReduceOp op,
                      const DeviceCall& call) override;
  Work all_gather(DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out, const DeviceCall& call) override;
  Work broadcast(DeviceSpan<std::byte> data, Rank root, const DeviceCall& call) override;
  Work all_to_all(DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out, const DeviceCall& call) override;
  Work exchange(std::span<const DeviceSendList> sends, std::span<const DeviceReceiveList> receives, const DeviceCall& call) override;
  Work send_receive(DeviceSpan<const std::byte> out, DeviceSpan<std::byte> in, Rank peer, const DeviceCall& call) override;
  Result<void> close(Duration limit) override { return communicator_->close(limit); }
  void revoke(const Failure& why) override { communicator_->revoke(why); }

 private:
  [[nodiscard]] std::uint32_t me() const { return membership_.rank.value(); }
  [[nodiscard]] std::uint32_t world() const { return membership_.world.value(); }
  /// `fits`: what is wrong with the arguments, if anything is.
  Work begin(const char* name, const Result<void>& fits, const DeviceCall& call, NcclCommunicator::Body body);

  const Membership membership_;
  const Device device_;
  const std::unique_ptr<NcclCommunicator> communicator_;
};

}  // namespace elrun::inline v0
