#include "lib/job/state/update.hpp"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

/// base^n by squaring: the same bits with every library, which std::pow does not promise.
double power(double base, std::uint64_t n) {
  double result = 1.0;
  for (; n > 0; n >>= 1, base *= base)
    if ((n & 1) != 0) result *= base;
  return result;
}

struct Checks {
  std::vector<std::string> wrong;
  void say(const char* name, float value, const char* rule) { wrong.push_back(fmt::format("{} is {}; it must be {}", name, value, rule)); }
  void part(const char* name, float value) {
    if (!(value >= 0 && value < 1)) say(name, value, "at least 0 and below 1");
  }
  void number(const char* name, float value) {
    if (!std::isfinite(value)) say(name, value, "a number");
  }
  void operator()(const AdamW& o) {
    part("beta1", o.beta1), part("beta2", o.beta2);
    if (!(o.epsilon > 0)) say("epsilon", o.epsilon, "above 0");
    number("weight_decay", o.weight_decay);
  }
  void operator()(const Sgd& o) { part("momentum", o.momentum), number("weight_decay", o.weight_decay); }
  void operator()(const Lion& o) { part("beta1", o.beta1), part("beta2", o.beta2), number("weight_decay", o.weight_decay); }
};

/// The scalars of a step, of which none depends on where it is made.
struct StepOf {
  float lr, scale;
  std::uint64_t t;

  OptimizerStep operator()(const AdamW& o) const {
    return AdamWStep{.lr = lr,
                     .beta1 = o.beta1,
                     .beta2 = o.beta2,
                     .epsilon = o.epsilon,
                     .weight_decay = o.weight_decay,
                     .bias1 = static_cast<float>(1.0 - power(o.beta1, t)),
                     .bias2 = static_cast<float>(1.0 - power(o.beta2, t)),
                     .scale = scale};
  }
  OptimizerStep operator()(const Sgd& o) const {
    return SgdStep{.lr = lr, .momentum = o.momentum, .weight_decay = o.weight_decay, .scale = scale, .nesterov = o.nesterov};
  }
  OptimizerStep operator()(const Lion& o) const {
    return LionStep{.lr = lr, .beta1 = o.beta1, .beta2 = o.beta2, .weight_decay = o.weight_decay, .scale = scale};
  }
};

}  // namespace

Optimizer kind_of(const AnyOptimizer& optimizer) {
  constexpr Optimizer kinds[] = {Optimizer::adamw, Optimizer::sgd, Optimizer::lion};
  static_assert(std::size(kinds) == std::variant_size_v<AnyOptimizer>);
  return kinds[optimizer.index()];
}

const char* name_of(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adamw: return "adamw";
    case Optimizer::sgd: return "sgd";
    case Optimizer::lion: return "lion";
  }
  return nullptr;
}

std::span<const std::string_view> moments_of(Optimizer optimizer) {
  static constexpr std::string_view adamw_moments[] = {"exp_avg", "exp_avg_sq"}, sgd_moments[] = {"momentum"}, lion_moments[] = {"exp_avg"};
  static_assert(std::size(adamw_moments) == moments_max);
  switch (optimizer) {
    case Optimizer::adamw: return adamw_moments;
    case Optimizer::sgd: return sgd_moments;
    case Optimizer::lion: return lion_moments;
  }
  return {};
}

std::vector<std::string> problems(const AnyOptimizer& optimizer, const UpdateOptions& options) {
  Checks checks;
  std::visit(checks, optimizer);
  checks.number("lr", options.lr);
  if (!(options.clip_norm >= 0)) checks.say("clip_norm", options.clip_norm, "above 0, or 0 for no clipping");
  return std::move(checks.wrong);
}

OptimizerStep step_of(const AnyOptimizer& optimizer, float lr, float scale, std::uint64_t t) {
  ELRUN_ASSERT(t > 0);
  return std::visit(StepOf{lr, scale, t}, optimizer);
}

}  // namespace elrun::inline v0
