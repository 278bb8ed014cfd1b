#pragma once
/// \file AdamW with everything in one pass: unscale, clip, moments, weight decay, update, and the cast to bf16.
/// Per element 28 bytes are read and written with an fp32 gradient, 30 with a bf16 copy of the parameter.

#include <span>

#include <elrun/tensor.hpp>

#include "kernels/convert.hpp"

namespace elrun::inline v0 {

/// The scalars of one step, the same on every rank. The bias corrections are computed on the host in double: a power
/// function is the one thing here that differs between libraries.
struct AdamWStep {
  float lr = 0;
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
  float weight_decay = 0;
  float bias1 = 1;  ///< 1 - beta1^t
  float bias2 = 1;  ///< 1 - beta2^t
  float scale = 1;  ///< Multiplies the gradient: unscale x clip.
};

/// One element. Every product that is added is a fused multiply-add, every other operation rounds on its own.
struct AdamWFunctor {
  float beta1, beta2, rest1, rest2, bias2, epsilon, scale, minus_rate, minus_decay;

  ELRUN_HD explicit AdamWFunctor(const AdamWStep& s)
      : beta1{s.beta1},
        beta2{s.beta2},
        rest1{1.0f - s.beta1},
        rest2{1.0f - s.beta2},
        bias2{s.bias2},
        epsilon{s.epsilon},
        scale{s.scale},
        minus_rate{-divide(s.lr, s.bias1)},
        minus_decay{-(s.lr * s.weight_decay)} {}

  ELRUN_HD ELRUN_INLINE void operator()(float& parameter, float& exp_avg, float& exp_avg_sq, float gradient) const noexcept {
    const float g = gradient * scale;
    const float m = multiply_add(beta1, exp_avg, rest1 * g);
    const float v = multiply_add(beta2, exp_avg_sq, rest2 * (g * g));
    const float decayed = multiply_add(minus_decay, parameter, parameter);
    const float direction = divide(m, square_root(divide(v, bias2)) + epsilon);
    parameter = canonical(multiply_add(minus_rate, direction, decayed));
    exp_avg = canonical(m);
    exp_avg_sq = canonical(v);
  }
};

/// Spans of the same size that do not overlap. `rounded`, where it is not empty, receives the parameter as bf16.
void adamw(std::span<float> parameter, std::span<float> exp_avg, std::span<float> exp_avg_sq, std::span<const float> gradient,
           const AdamWStep& step, std::span<bf16> rounded = {}, Isa isa = isa_of_this_machine());

}  // namespace elrun::inline v0
