#pragma once
/// \file Optimizers with one moment, each with everything in one pass: SGD with momentum, and Lion. Per element 20 bytes
/// are read and written with an fp32 gradient, 22 with a bf16 copy of the parameter.

#include <span>

#include <elrun/tensor.hpp>

#include "kernels/convert.hpp"

namespace elrun::inline v0 {

/// The scalars of one step of SGD, the same on every rank.
struct SgdStep {
  float lr = 0;
  float momentum = 0;
  float weight_decay = 0;
  float scale = 1;  ///< Multiplies the gradient: unscale x clip.
  bool nesterov = false;
};

/// One element. Every product that is added is a fused multiply-add, every other operation rounds on its own.
struct SgdFunctor {
  float momentum, scale, minus_rate, minus_decay;
  bool nesterov;

  ELRUN_HD explicit SgdFunctor(const SgdStep& s)
      : momentum{s.momentum}, scale{s.scale}, minus_rate{-s.lr}, minus_decay{-(s.lr * s.weight_decay)}, nesterov{s.nesterov} {}

  ELRUN_HD ELRUN_INLINE void operator()(float& parameter, float& moment, float gradient) const noexcept {
    const float g = gradient * scale;
    const float m = multiply_add(momentum, moment, g);
    const float ahead = multiply_add(momentum, m, g);
    const float decayed = multiply_add(minus_decay, parameter, parameter);
    parameter = canonical(multiply_add(minus_rate, nesterov ? ahead : m, decayed));
    moment = canonical(m);
  }
};

/// The scalars of one step of Lion, the same on every rank.
struct LionStep {
  float lr = 0;
  float beta1 = 0;
  float beta2 = 0;
  float weight_decay = 0;
  float scale = 1;  ///< Multiplies the gradient: unscale x clip.
};

struct LionFunctor {
  float beta1, beta2, rest1, rest2, scale, rate, minus_decay;

  ELRUN_HD explicit LionFunctor(const LionStep& s)
      : beta1{s.beta1},
        beta2{s.beta2},
        rest1{1.0f - s.beta1},
        rest2{1.0f - s.beta2},
        scale{s.scale},
        rate{s.lr},
        minus_decay{-(s.lr * s.weight_decay)} {}

  ELRUN_HD ELRUN_INLINE void operator()(float& parameter, float& moment, float gradient) const noexcept {
    const float g = gradient * scale;
    const float direction = multiply_add(beta1, moment, rest1 * g);
    const float decayed = multiply_add(minus_decay, parameter, parameter);
    const float move = direction > 0 ? rate : direction < 0 ? -rate : 0.0f;  // zero, and what is no number, moves nothing
    parameter = canonical(decayed - move);
    moment = canonical(multiply_add(beta2, moment, rest2 * g));
  }
};

/// Spans of the same size that do not overlap. `rounded`, where it is not empty, receives the parameter as bf16.
void sgd(std::span<float> parameter, std::span<float> moment, std::span<const float> gradient, const SgdStep& step,
         std::span<bf16> rounded = {}, Isa isa = isa_of_this_machine());
void lion(std::span<float> parameter, std::span<float> moment, std::span<const float> gradient, const LionStep& step,
          std::span<bf16> rounded = {}, Isa isa = isa_of_this_machine());

}  // namespace elrun::inline v0
