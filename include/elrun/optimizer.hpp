#pragma once
/// \file Optimizers: their options and the names of their states. One fused pass per shard does the work.

#include <cstdint>

#include <elrun/schedule.hpp>

namespace elrun::inline v0 {

/// Which one a job trains with. It is part of the plan, for memory, checkpoints and the state hash follow from its
/// states; `Step::apply` takes the options, which may change from step to step.
enum class Optimizer : std::uint8_t { adamw, sgd, lion };

/// AdamW (Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019), with bias correction.
/// States: `exp_avg`, `exp_avg_sq`, fp32.
struct AdamW {
  float beta1 = 0.9f;  ///< At least 0 and below 1, as beta2.
  float beta2 = 0.95f;
  float epsilon = 1e-8f;      ///< Above 0; added to the root of the second moment.
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

/// What may change from step to step. It is part of the promise of the same bits, as the optimizer's options are: both are the same on all
/// ranks, and the same when a step is done again after a failure. So compute them from `step.number()`, or from a variable that is registered
/// with `Job::state`, which goes back with the step. A variable of the loop's own does not go back:
///
///     float lr = 0.1f;                                                    // wrong: a worker that is started again begins with 0.1,
///     if (step->apply(Sgd{}, {.lr = lr}).decided) lr *= 0.95f;            // the others go on with what they have
///
///     job.state("lr", lr);                                                // right: before restore(), then the same loop
///     step->apply(Sgd{}, {.lr = [](std::uint64_t s) { return ... }});     // right, too: a function of the step, or a Schedule
///
/// It is checked: the values travel with each step's votes, and each process remembers those of decided steps. See `Step::apply`.
struct ApplyOptions {
  Rate lr = 0.0f;  ///< Learning rate: a finite number, a Schedule, or a function of the step's number that returns one.
  /// Gradients are scaled so that their global norm (of the mean over the step's slots) is at most this (Pascanu, Mikolov,
  /// Bengio, "On the difficulty of training recurrent neural networks", ICML 2013); 0: not clipped.
  float clip_norm = 0.0f;
};

}  // namespace elrun::inline v0
