#pragma once
/// \file InitialValues: the values that a program writes before its first step, and the check that all ranks have the same parameters.
///
/// Of what is replicated the ranks compare what they hold, or a sample of it where they compared it in the generation before. Of a unit that is sharded they compare what they saw when a scope of it ended: who had
/// no such scope wrote nothing. A comparison is due once in every generation, before a step of it is decided: at once, or with the votes for its first step, while whose slots the hash is made.
/// Called by the job's thread.

#include <cstdint>
#include <span>
#include <vector>

#include <elrun/result.hpp>

#include "lib/job/world.hpp"

namespace elrun::inline v0 {

class InitialValues {
 public:
  InitialValues() = default;
  explicit InitialValues(std::size_t units) : written_(units) {}

  /// After `restore()`: whether the program makes the values, because nothing was restored.
  void allow(bool made_here) { allowed_ = made_here; }
  /// Nothing was restored, and no step was handed out.
  [[nodiscard]] bool may_write() const { return allowed_; }
  /// A scope of a sharded unit ended, with weights of this hash.
  void wrote(std::uint32_t unit, std::uint64_t hash) {
    if (allowed_) written_[unit] = hash;
  }
  /// A step is handed out: what was written is compared by now, and out of date from here on.
  void begin_step() {
    if (allowed_) forget();
    allowed_ = false;
  }
  /// The values came from a checkpoint.
  void forget() { written_.assign(written_.size(), 0); }

  void begin_generation() { comparison_ = Comparison::due; }
  [[nodiscard]] bool is_due() const { return comparison_ == Comparison::due; }
  /// No value that a program writes is in it: this rank's hash goes with its vote for the step that is handed out next.
  void leave_to_votes() { comparison_ = Comparison::left_to_votes; }
  [[nodiscard]] bool is_left_to_votes() const { return comparison_ == Comparison::left_to_votes; }
  /// All votes are here. `by_rank`: the hashes that they say. A failure (`mismatch`) is the same on all ranks.
  Result<void> hear_votes(std::span<const std::uint64_t> by_rank, std::uint64_t step);
  /// On all ranks. `replicated`: the hash of all parameters that every rank has. `step`: decided steps, for the message. Throws Error
  /// (`mismatch`) on all ranks alike where values differ; where the generation ends meanwhile, as `expect` (revoked.hpp).
  void compare(JobWorld& world, std::uint64_t replicated, std::uint64_t step);

 private:
  enum class Comparison : std::uint8_t { due, left_to_votes, done };
  bool allowed_ = false;
  Comparison comparison_ = Comparison::due;
  std::vector<std::uint64_t> written_;  // by unit: the hash of what a scope left; 0: none did
};

}  // namespace elrun::inline v0
