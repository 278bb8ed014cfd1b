#include "kernels/cuda/wide.cuh"
#include "kernels/fold.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

__device__ float4 folded(float4 left, float4 right) {
  const FoldFunctor fold;
  return {fold(left.x, right.x), fold(left.y, right.y), fold(left.z, right.z), fold(left.w, right.w)};
}

struct FoldFloats {
  static constexpr unsigned width = 4, in_flight = 2;
  struct Group {
    float4 left, right;
  };
  float* left;
  const float* right;
  __device__ void one(std::uint64_t i) const { left[i] = FoldFunctor{}(left[i], right[i]); }
  __device__ Group load(std::uint64_t i) const { return {load_wide<float4>(left + i), load_wide<float4>(right + i)}; }
  __device__ void finish(std::uint64_t i, const Group& g) const { store_wide(left + i, folded(g.left, g.right)); }
};

struct FoldHalves {
  static constexpr unsigned width = 8, in_flight = 2;
  struct Group {
    float4 left[2];
    uint4 right;
  };
  float* left;
  const bf16* right;
  __device__ void one(std::uint64_t i) const { left[i] = FoldFunctor{}(left[i], right[i]); }
  __device__ Group load(std::uint64_t i) const {
    return {{load_wide<float4>(left + i), load_wide<float4>(left + i + four)}, load_wide<uint4>(right + i)};
  }
  __device__ void finish(std::uint64_t i, const Group& g) const {
    store_wide(left + i, folded(g.left[0], to_float(first_half(g.right))));
    store_wide(left + i + four, folded(g.left[1], to_float(second_half(g.right))));
  }
};

}  // namespace

void add_into_async(DeviceSpan<float> left, DeviceSpan<const float> right, Stream stream) {
  ELRUN_ASSERT(left.size == right.size);
  wide_async(left.size, head_of(FoldFloats::width, left.data, right.data), FoldFloats{left.data, right.data}, stream);
}

void add_into_async(DeviceSpan<float> left, DeviceSpan<const bf16> right, Stream stream) {
  ELRUN_ASSERT(left.size == right.size);
  wide_async(left.size, head_of(FoldHalves::width, left.data, right.data), FoldHalves{left.data, right.data}, stream);
}

}  // namespace elrun::inline v0
