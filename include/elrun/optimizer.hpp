#pragma once
/// \file Optimizers: their options and the names of their states. One fused pass per shard does the work.

#include <cstdint>

namespace elrun::inline v0 {

/// AdamW (Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019), with bias correction.
/// States: `exp_avg`, `exp_avg_sq`, fp32.
struct AdamW {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< Only for tensors declared with `.decay = true`.
};

/// What changes from step to step.
struct ApplyOptions {
  float lr = 0.0f;
  float clip_norm = 0.0f;  ///< Gradients are scaled so that their global norm is at most this; 0: not clipped.
};

}  // namespace elrun::inline v0
