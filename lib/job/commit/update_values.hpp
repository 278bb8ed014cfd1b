#pragma once
/// \file What a program passes to `apply`, as exact bits. It travels with the votes and is compared between ranks; each member remembers
/// it for decided steps, so that a step that is done again is done with the same values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <elrun/result.hpp>

#include "lib/job/state/update.hpp"

namespace elrun::inline v0 {

/// The values of one step. It travels and is stored as it lies here, without padding.
struct UpdateValues {
  std::uint32_t kind = 0;               ///< 0: not known; else 1 + the Optimizer's number.
  std::array<std::uint32_t, 7> bits{};  ///< lr, clip_norm, then the optimizer's options in the order of their declaration.
  [[nodiscard]] constexpr bool known() const { return kind != 0; }
  friend constexpr bool operator==(const UpdateValues&, const UpdateValues&) = default;
};
static_assert(sizeof(UpdateValues) == 8 * sizeof(std::uint32_t));
[[nodiscard]] UpdateValues values_of(const AnyOptimizer& optimizer, const UpdateOptions& options);

/// What one rank's vote for a step says.
struct UpdateReport {
  UpdateValues passed;      ///< To `apply`, now,
  UpdateValues remembered;  ///< and when the step was decided before; not known where it was not, or the rank does not remember;
  UpdateValues
      tried{};  ///< and in this process's first `apply` for this step that binds, should the world have been lost then; not known: there was none.
};
/// Success where all ranks passed the same values, those with which the step was decided before, and those with which they tried to apply it before. The failure names the step, each
/// value that differs with both of its values, the ranks and the remedy. All ranks come to the same.
[[nodiscard]] Result<void> check_update(std::uint64_t step, std::span<const UpdateReport> by_rank);

/// The same for a step that is decided already: by rank, the values with which it was applied or voted for; not known: neither. They
/// differ where members did the step in two generations without knowing of each other.
[[nodiscard]] Result<void> check_decided_update(std::uint64_t step, std::span<const UpdateValues> by_rank);

/// "lr is 0.1, as in step 0, and was 0.06 in step 9", for each value that differs.
[[nodiscard]] std::string as_at_first(const UpdateValues& now, const UpdateValues& last, std::uint64_t last_step);

/// The values of decided steps that this process knows. Steps in a row with the same values take one place.
class UpdateMemory {
 public:
  /// Beyond it the oldest steps are forgotten: at most 4 MB, for programs whose values change in each step.
  static constexpr std::size_t places_max = std::size_t{1} << 16;

  void remember(std::uint64_t step, const UpdateValues& values);
  /// Not known: nothing is remembered of that step.
  [[nodiscard]] UpdateValues of(std::uint64_t step) const;
  /// Of a step for which `apply` was called with values that bind: the first values are kept, until another step is tried. It is decided or not.
  void try_first(std::uint64_t step, const UpdateValues& values);
  /// Not known: `step` was not the last one that was tried.
  [[nodiscard]] UpdateValues tried(std::uint64_t step) const { return step == tried_step_ ? tried_ : UpdateValues{}; }
  [[nodiscard]] std::size_t places() const { return runs_.size(); }

 private:
  struct Run {
    std::uint64_t end = 0;  // the first step that is not in it
    UpdateValues values;
  };
  void forget(std::uint64_t step);
  std::uint64_t tried_step_ = 0;
  UpdateValues tried_;
  std::map<std::uint64_t, Run> runs_;  // by the first step of each; they do not overlap
};

}  // namespace elrun::inline v0
