#pragma once
/// \file UpdateRecord: with which optimizer and options this member applies the step at hand, votes for it, and applied the steps before.
/// Core, called by the job's thread.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lib/job/commit/update_values.hpp"

namespace elrun::inline v0 {

class UpdateRecord {
 public:
  /// The program called `apply` for this step. `binds`: it has to pass the same should the step be done again.
  void pass(std::uint64_t step, const AnyOptimizer& optimizer, const UpdateOptions& options, bool binds);
  /// This member votes for it, with what was passed.
  void vote() { voted_ = values_of(optimizer_, options_); }
  /// With which it voted last.
  [[nodiscard]] const UpdateValues& voted() const { return voted_; }
  /// In the run of the program before this one, whose state this one took over.
  void set_voted(const UpdateValues& values) { voted_ = values; }
  [[nodiscard]] UpdateReport report(std::uint64_t step) const { return {voted_, memory_.of(step), memory_.tried(step)}; }
  /// The step for which it voted is decided, and applied with what was passed.
  void decided(std::uint64_t step) { memory_.remember(step, voted_); }
  [[nodiscard]] const AnyOptimizer& optimizer() const { return optimizer_; }
  [[nodiscard]] const UpdateOptions& options() const { return options_; }

  /// What decided steps were updated with. It outlives one run of the program in this process.
  [[nodiscard]] UpdateMemory& memory() { return memory_; }
  [[nodiscard]] const UpdateMemory& memory() const { return memory_; }

  /// Nobody knows what the next step was updated with, should it have been decided before.
  void set_from_checkpoint(bool from_checkpoint) { from_checkpoint_ = from_checkpoint; }
  /// Asked once, of the first vote after a checkpoint: a sentence where its values are those of step 0 and not those of the step before. That
  /// looks like a variable of the loop that began anew with the process. A schedule may come back to them, so it is no error.
  [[nodiscard]] std::optional<std::string> take_doubt(std::uint64_t step);

 private:
  AnyOptimizer optimizer_;
  UpdateOptions options_;
  UpdateValues voted_;
  UpdateMemory memory_;
  bool from_checkpoint_ = false;
};

}  // namespace elrun::inline v0
