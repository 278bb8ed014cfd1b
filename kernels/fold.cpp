#include "kernels/fold.hpp"

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

template <class Right>
void fold(std::span<float> left, std::span<const Right> right, Isa isa) {
  ELRUN_ASSERT(left.size() == right.size());
  run_with(
      isa, ELRUN_LOOP {
        for (std::size_t i = 0; i < left.size(); ++i) left[i] = FoldFunctor{}(left[i], right[i]);
      });
}

}  // namespace

void add_into(std::span<float> left, std::span<const float> right, Isa isa) { fold(left, right, isa); }
void add_into(std::span<float> left, std::span<const bf16> right, Isa isa) { fold(left, right, isa); }

}  // namespace elrun::inline v0
