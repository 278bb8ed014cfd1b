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
  float beta1 = 0.9f;    ///< At least 0 and below 1, as beta2.
  float beta2 = 0.95f;
  float epsilon = 1e-8f;  ///< Above 0; added to the root of the second moment.
  float weight_decay = 0.1f;  ///< Only for tensors declared with `.decay = true`.
};

/// Stochastic gradient descent with momentum (Sutskever et al., "On the importance of initialization and momentum in
/// deep learning", ICML 2013, in the form without dampening): m = momentum m + g, and the parameter moves by -lr m, or
/// with `nesterov` by -lr (g + momentum m). Weight decay is decoupled as in AdamW, and not part of g.
/// State: `momentum`, fp32.
struct Sgd {
  float momentum = 0.9f;  ///< At least 0 and below 1.
  bool nesterov = false;
  float weight_decay = 0.0f;  ///< Only for tensors declared with `.decay = true`.
};

/// Lion (Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023): the parameter moves by lr against
/// the sign of beta1 m + (1 - beta1) g, then m = beta2 m + (1 - beta2) g. Wants a third to a tenth of AdamW's rate.
/// State: `exp_avg`, fp32.
struct Lion {
  float beta1 = 0.9f;  ///< At least 0 and below 1, as beta2.
  float beta2 = 0.99f;
  float weight_decay = 0.1f;  ///< Only for tensors declared with `.decay = true`.
};

/// What changes from step to step: the same on all ranks. What is out of bounds here or in an optimizer's options is told by
/// `Step::apply`, all at once.
struct ApplyOptions {
  float lr = 0.0f;         ///< Learning rate; any finite number.
  /// Gradients are scaled so that their global norm (of the mean over the step's slots) is at most this (Pascanu, Mikolov,
  /// Bengio, "On the difficulty of training recurrent neural networks", ICML 2013); 0: not clipped.
  float clip_norm = 0.0f;
};

}  // namespace elrun::inline v0
