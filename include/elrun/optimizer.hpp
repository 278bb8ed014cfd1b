#pragma once
/// \file Optimizers: their options and the names of their states. One fused pass per shard does the work.

#include <cstdint>

namespace elrun::inline v0 {

/// Which one a job trains with. It is part of the plan, for memory, checkpoints and the state hash follow from its
/// states; `Step::apply` takes the options, which may change from step to step.
enum class Optimizer : std::uint8_t { adamw, sgd, lion };

/// AdamW (Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019), with bias correction.
/// States: `exp_avg`, `exp_avg_sq`, fp32.
struct AdamW {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< Only for tensors declared with `.decay = true`.
};

/// Stochastic gradient descent with momentum (Sutskever et al., "On the importance of initialization and momentum in
/// deep learning", ICML 2013, in the form without dampening): m = momentum m + g, and the parameter moves by -lr m, or
/// with `nesterov` by -lr (g + momentum m). Weight decay is decoupled as in AdamW, and not part of g.
/// State: `momentum`, fp32.
struct Sgd {
  float momentum = 0.9f;
  bool nesterov = false;
  float weight_decay = 0.0f;  ///< Only for tensors declared with `.decay = true`.
};

/// Lion (Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023): the parameter moves by lr against
/// the sign of beta1 m + (1 - beta1) g, then m = beta2 m + (1 - beta2) g. Wants a third to a tenth of AdamW's rate.
/// State: `exp_avg`, fp32.
struct Lion {
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float weight_decay = 0.1f;  ///< Only for tensors declared with `.decay = true`.
};

/// What changes from step to step.
struct ApplyOptions {
  float lr = 0.0f;
  float clip_norm = 0.0f;  ///< Gradients are scaled so that their global norm is at most this; 0: not clipped.
};

}  // namespace elrun::inline v0
