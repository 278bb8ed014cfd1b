#include "kernels/cuda/launch.cuh"
#include "kernels/fold.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

template <class Right>
struct Fold {
  float* left;
  const Right* right;
  __device__ void operator()(std::uint64_t i) const { left[i] = FoldFunctor{}(left[i], right[i]); }
};

}  // namespace

void add_into_async(DeviceSpan<float> left, DeviceSpan<const float> right, Stream stream) {
  ELRUN_ASSERT(left.size == right.size);
  for_each_async(left.size, Fold<float>{left.data, right.data}, stream);
}

void add_into_async(DeviceSpan<float> left, DeviceSpan<const bf16> right, Stream stream) {
  ELRUN_ASSERT(left.size == right.size);
  for_each_async(left.size, Fold<bf16>{left.data, right.data}, stream);
}

}  // namespace elrun::inline v0
