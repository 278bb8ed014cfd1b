#include "kernels/adamw.hpp"

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

void adamw(std::span<float> parameter, std::span<float> exp_avg, std::span<float> exp_avg_sq, std::span<const float> gradient,
           const AdamWStep& step, std::span<bf16> rounded, Isa isa) {
  ELRUN_ASSERT(exp_avg.size() == parameter.size() && exp_avg_sq.size() == parameter.size() && gradient.size() == parameter.size());
  ELRUN_ASSERT(rounded.empty() || rounded.size() == parameter.size());
  run_with(
      isa, ELRUN_LOOP {
        const AdamWFunctor update{step};
        if (rounded.empty()) {
          for (std::size_t i = 0; i < parameter.size(); ++i) update(parameter[i], exp_avg[i], exp_avg_sq[i], gradient[i]);
        } else {
          for (std::size_t i = 0; i < parameter.size(); ++i) {
            update(parameter[i], exp_avg[i], exp_avg_sq[i], gradient[i]);
            rounded[i] = to_bf16(parameter[i]);
          }
        }
      });
}

}  // namespace elrun::inline v0
