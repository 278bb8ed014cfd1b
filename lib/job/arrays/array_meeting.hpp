#pragma once
/// \file ArrayMeeting: how the members of a generation come to the exchange of their arrays. All say what they have, and conclude the same.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lib/base/log.hpp"
#include "lib/comm/device_collectives.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Groups on device memory, as the process makes them; a test brings its own.
struct DeviceGroups {
  std::function<NcclFacts(Device)> facts;
  std::function<Result<std::unique_ptr<DeviceCollectives>>(Session&, const DeviceGroupToJoin&)> join;
};

/// Used by the job's thread, once in each generation, by all members.
class ArrayMeeting {
 public:
  /// All outlive it. `groups` without functions: arrays are always staged. `memory`: where they lie.
  ArrayMeeting(const DeviceGroups& groups, Session& session, Memory& memory, const Clock& clock, const Log& log)
      : groups_{groups}, session_{session}, memory_{memory}, clock_{clock}, log_{log} {}

  /// A group on device memory where all can make one (lib/comm/nccl/facts.hpp), else staged, and the leader says why. Fails as an exchange of the world does. Throws Error where this
  /// process cannot go on.
  Result<void> meet(JobWorld& world);
  /// In the process of a run of the program before this one: it is the same member for the others.
  void continue_from(const ArrayMeeting& before) { process_ = before.process_; }

 private:
  void tell(const JobWorld& world, std::string what);
  /// What this rank says of itself.
  [[nodiscard]] NcclFacts facts();
  /// Whether it stays a reason not to try again. `all`: what all have said.
  void note(std::span<const NcclFacts> all, const Failure& why);
  const DeviceGroups& groups_;
  Session& session_;
  Memory& memory_;
  const Clock& clock_;
  const Log& log_;
  std::string problem_;  // of this rank: a group that it could not make, by what NCCL or the device said, stays a reason not to try again
  unsigned late_in_a_row_ = 0;
  unsigned makings_late_ = 0;  // of all generations: groups for which all had come, and which NCCL did not make in time
  std::uint64_t late_of_ = 0;  // of `problem_`, as NcclFacts has it
  std::uint64_t process_ = 0;
  std::string logged_;
};

}  // namespace elrun::inline v0
