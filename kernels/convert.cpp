#include "kernels/convert.hpp"

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

void to_bf16(std::span<const float> in, std::span<bf16> out, Isa isa) {
  ELRUN_ASSERT(in.size() == out.size());
  run_with(
      isa, ELRUN_LOOP {
        for (std::size_t i = 0; i < in.size(); ++i) out[i] = to_bf16(in[i]);
      });
}

void to_float(std::span<const bf16> in, std::span<float> out, Isa isa) {
  ELRUN_ASSERT(in.size() == out.size());
  run_with(
      isa, ELRUN_LOOP {
        for (std::size_t i = 0; i < in.size(); ++i) out[i] = to_float(in[i]);
      });
}

}  // namespace elrun::inline v0
