#include "kernels/convert.hpp"
#include "kernels/cuda/launch.cuh"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

struct Round {
  const float* in;
  bf16* out;
  __device__ void operator()(std::uint64_t i) const { out[i] = to_bf16(in[i]); }
};

struct Widen {
  const bf16* in;
  float* out;
  __device__ void operator()(std::uint64_t i) const { out[i] = to_float(in[i]); }
};

}  // namespace

void to_bf16_async(DeviceSpan<const float> in, DeviceSpan<bf16> out, Stream stream) {
  ELRUN_ASSERT(in.size == out.size);
  for_each_async(in.size, Round{in.data, out.data}, stream);
}

void to_float_async(DeviceSpan<const bf16> in, DeviceSpan<float> out, Stream stream) {
  ELRUN_ASSERT(in.size == out.size);
  for_each_async(in.size, Widen{in.data, out.data}, stream);
}

}  // namespace elrun::inline v0
