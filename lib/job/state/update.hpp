#pragma once
/// \file What each optimizer keeps, and the scalars of its steps: kinds of moments, checks of options.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <elrun/optimizer.hpp>

#include "kernels/update.hpp"

namespace elrun::inline v0 {

using AnyOptimizer = std::variant<AdamW, Sgd, Lion>;
[[nodiscard]] Optimizer kind_of(const AnyOptimizer& optimizer);
[[nodiscard]] const char* name_of(Optimizer optimizer);  ///< "adamw"; nullptr for what is none.

/// The names of an optimizer's states, in the order in which everything counts them.
[[nodiscard]] std::span<const std::string_view> moments_of(Optimizer optimizer);
constexpr std::size_t moments_max = 2;

/// `ApplyOptions` of one step, as numbers.
struct UpdateOptions {
  float lr = 0.0f, clip_norm = 0.0f;
};

/// Every contradiction, in sentences.
[[nodiscard]] std::vector<std::string> problems(const AnyOptimizer& optimizer, const UpdateOptions& options);

/// Step `t`, the first of which is 1. `scale` multiplies the gradient.
[[nodiscard]] OptimizerStep step_of(const AnyOptimizer& optimizer, float lr, float scale, std::uint64_t t);

}  // namespace elrun::inline v0
