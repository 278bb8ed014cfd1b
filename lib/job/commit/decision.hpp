#pragma once
/// \file Decision: what the votes for a decided step came to.

#include <cmath>
#include <cstdint>

#include "lib/job/commit/update_values.hpp"

namespace elrun::inline v0 {

/// What the votes for a decided step came to: with it, a member that voted can apply the step later.
struct Decision {
  float squares = 0;  ///< The sum of squares over the gradient.
  bool finite = true;
  float loss = 0;  ///< Mean over the slots.
  std::uint64_t tokens = 0;
  std::uint64_t count = 0;  ///< Decided steps, this one included; 0: this is none.
  UpdateValues update{};    ///< With which it was decided.
  bool stops = false;       ///< A member asked that the job end with this step.
  /// The norm is not finite: the step counts, and updates nothing.
  [[nodiscard]] bool skips() const { return !finite || !std::isfinite(squares); }
  friend constexpr bool operator==(const Decision&, const Decision&) = default;
};

}  // namespace elrun::inline v0
