#include "lib/job/commit/update_record.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {

void UpdateRecord::pass(std::uint64_t step, const AnyOptimizer& optimizer, const UpdateOptions& options, bool binds) {
  optimizer_ = optimizer;
  options_ = options;
  if (binds) memory_.try_first(step, values_of(optimizer, options));
}

std::optional<std::string> UpdateRecord::take_doubt(std::uint64_t step) {
  if (!std::exchange(from_checkpoint_, false)) return std::nullopt;
  const UpdateValues first = memory_.of(0), last = step == 0 ? first : memory_.of(step - 1);
  if (!first.known() || !last.known() || first == last || voted_ != first) return std::nullopt;
  return fmt::format(
      "step {} is the first one after the checkpoint: {}. Is it a variable that began anew with the process? Then register it with "
      "job.state(name, variable) before restore(), or compute it from step.number()",
      step, as_at_first(voted_, last, step - 1));
}

}  // namespace elrun::inline v0
