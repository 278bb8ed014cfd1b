#pragma once
/// \file Learning rates as pure functions of the step, with the same bits on every machine.

#include <cstdint>
#include <string>
#include <vector>

#include <elrun/export.hpp>

namespace elrun::inline v0 {

/// A linear warm-up (Goyal et al., "Accurate, large minibatch SGD", 2017), then a shape that ends at the last step; the cosine
/// is that of Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts. A value; state to save there is none.
struct Schedule {
  enum class Shape : std::uint8_t {
    constant,  ///< `highest` to the end.
    linear,    ///< A straight line from `highest` down to `highest * last`.
    cosine     ///< Half a cosine from `highest` down to `highest * last`.
  };
  Shape shape = Shape::constant;
  double highest = 0;         ///< The rate at the end of the warm-up.
  double last = 0;            ///< What the shape ends with, as a part of `highest`; not for `constant`.
  std::uint64_t warm_up = 0;  ///< Steps; step s of them has `highest * (s + 1) / warm_up`.
  std::uint64_t steps = 0;    ///< Where the shape ends, warm-up included; from there on the rate stays. Not for `constant`.

  /// The rate of step `step`, the first of which is 0. Computed in double with nothing of libm, then rounded.
  [[nodiscard]] ELRUN_API float at(std::uint64_t step) const;
  /// Every contradiction, in sentences; empty when the schedule holds.
  [[nodiscard]] ELRUN_API std::vector<std::string> problems() const;
};

}  // namespace elrun::inline v0
