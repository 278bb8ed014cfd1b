/// In place of NCCL in a build without its header, or without CUDA's.

#include "lib/base/failure.hpp"
#include "lib/comm/device_collectives.hpp"

namespace elrun::inline v0 {

NcclFacts nccl_facts(Device) { return {.problem = "this libelrun was built without NCCL"}; }

Result<std::unique_ptr<DeviceCollectives>> join_device_collectives(Session& session, const DeviceGroupToJoin&) {
  Failure refused = invalid(
      "a group on device memory: this libelrun was built without NCCL; build it where nvcc and nccl.h (2.26 or newer) are, or leave "
      "GroupOptions::device at the host");
  refused.rank = session.place().membership.rank;
  refused.generation = session.place().membership.generation;
  return refused;
}

}  // namespace elrun::inline v0
