#pragma once
/// \file SlotLoop: the slots of a step, one after the other, and what the program reports of each.

#include <cstdint>
#include <string_view>

#include <elrun/job.hpp>

#include "lib/job/job_parts.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread.
class SlotLoop {
 public:
  /// Outlives it.
  explicit SlotLoop(JobParts& job) : job_{job} {}

  void take();
  Slot* first_slot();
  /// Closes the one before. Null: there is none more, or the generation is over.
  Slot* next_slot();
  void close_slot();

  void report(const Slot& slot, float loss, std::uint64_t tokens);
  void report(const Slot& slot, DeviceScalar loss, std::uint64_t tokens);
  void add(const Slot& slot, std::string_view name, double value);
  [[nodiscard]] bool is_revoked(const Slot& slot) const;

 private:
  JobParts& job_;
};

}  // namespace elrun::inline v0
