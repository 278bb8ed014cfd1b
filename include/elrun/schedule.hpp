#pragma once
/// \file Learning rates as pure functions of the step, with the same bits on every machine.

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
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

/// A learning rate: a number, or a function of the step's number, the first of which is 0. A function has to give the same number for the
/// same step in each process; `Step::apply` calls it, on the thread that called `apply`, and what it throws comes out of there.
class Rate {
 public:
  // Implicit: a number, a schedule and a function of the step are rates.
  Rate(float value = 0.0f) : value_{value} {}  // NOLINT(google-explicit-constructor)
  Rate(const Schedule& schedule)               // NOLINT(google-explicit-constructor)
      : function_{[schedule](std::uint64_t step) { return schedule.at(step); }}, problems_{schedule.problems()} {}
  template <class F>
  requires std::is_invocable_r_v<float, const F&, std::uint64_t> Rate(F function)  // NOLINT(google-explicit-constructor)
      : function_{std::move(function)} {
    if (!function_) problems_ = {"it is an empty function"};
  }
  [[nodiscard]] float at(std::uint64_t step) const { return function_ ? function_(step) : value_; }
  /// Those of the schedule, or that the function is empty; `Step::apply` throws them. Empty for a number and for any other function.
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }

 private:
  float value_ = 0.0f;
  std::function<float(std::uint64_t)> function_;
  std::vector<std::string> problems_;
};

}  // namespace elrun::inline v0
