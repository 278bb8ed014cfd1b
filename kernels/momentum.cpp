#include "kernels/momentum.hpp"

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

template <class Functor>
void run(std::span<float> parameter, std::span<float> moment, std::span<const float> gradient, const Functor& update,
         std::span<bf16> rounded, Isa isa) {
  ELRUN_ASSERT(moment.size() == parameter.size() && gradient.size() == parameter.size());
  ELRUN_ASSERT(rounded.empty() || rounded.size() == parameter.size());
  run_with(
      isa, ELRUN_LOOP {
        const Functor one = update;
        if (rounded.empty()) {
          for (std::size_t i = 0; i < parameter.size(); ++i) one(parameter[i], moment[i], gradient[i]);
        } else {
          for (std::size_t i = 0; i < parameter.size(); ++i) {
            one(parameter[i], moment[i], gradient[i]);
            rounded[i] = to_bf16(parameter[i]);
          }
        }
      });
}

}  // namespace

void sgd(std::span<float> parameter, std::span<float> moment, std::span<const float> gradient, const SgdStep& step, std::span<bf16> rounded,
         Isa isa) {
  run(parameter, moment, gradient, SgdFunctor{step}, rounded, isa);
}

void lion(std::span<float> parameter, std::span<float> moment, std::span<const float> gradient, const LionStep& step,
          std::span<bf16> rounded, Isa isa) {
  run(parameter, moment, gradient, LionFunctor{step}, rounded, isa);
}

}  // namespace elrun::inline v0
