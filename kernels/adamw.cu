#include "kernels/adamw.hpp"
#include "kernels/cuda/launch.cuh"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

// Four elements per thread where all addresses allow it: one 16-byte access per array instead of four.
constexpr std::uint64_t width = 4;

struct AdamWElement {
  float* __restrict__ parameter;
  float* __restrict__ exp_avg;
  float* __restrict__ exp_avg_sq;
  const float* __restrict__ gradient;
  bf16* __restrict__ rounded;  // may be null
  AdamWFunctor update;

  __device__ void operator()(std::uint64_t i) const {
    float p = parameter[i], m = exp_avg[i], v = exp_avg_sq[i];
    update(p, m, v, gradient[i]);
    parameter[i] = p;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    if (rounded != nullptr) rounded[i] = to_bf16(p);
  }
};

struct AdamWFour {
  AdamWElement one;
  __device__ void operator()(std::uint64_t i) const {
    float4 p = reinterpret_cast<float4*>(one.parameter)[i];
    float4 m = reinterpret_cast<float4*>(one.exp_avg)[i];
    float4 v = reinterpret_cast<float4*>(one.exp_avg_sq)[i];
    const float4 g = reinterpret_cast<const float4*>(one.gradient)[i];
    one.update(p.x, m.x, v.x, g.x);
    one.update(p.y, m.y, v.y, g.y);
    one.update(p.z, m.z, v.z, g.z);
    one.update(p.w, m.w, v.w, g.w);
    reinterpret_cast<float4*>(one.parameter)[i] = p;
    reinterpret_cast<float4*>(one.exp_avg)[i] = m;
    reinterpret_cast<float4*>(one.exp_avg_sq)[i] = v;
    if (one.rounded != nullptr)
      reinterpret_cast<ushort4*>(one.rounded)[i] = ushort4{to_bf16(p.x).bits, to_bf16(p.y).bits, to_bf16(p.z).bits, to_bf16(p.w).bits};
  }
};

bool aligned(const void* pointer, std::uint64_t bytes) { return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0; }

}  // namespace

void adamw_async(DeviceSpan<float> parameter, DeviceSpan<float> exp_avg, DeviceSpan<float> exp_avg_sq, DeviceSpan<const float> gradient,
                 const AdamWStep& step, DeviceSpan<bf16> rounded, Stream stream) {
  const std::uint64_t size = parameter.size;
  ELRUN_ASSERT(exp_avg.size == size && exp_avg_sq.size == size && gradient.size == size);
  ELRUN_ASSERT(rounded.data == nullptr || rounded.size == size);
  const AdamWElement one{parameter.data, exp_avg.data, exp_avg_sq.data, gradient.data, rounded.data, AdamWFunctor{step}};
  const bool wide = aligned(one.parameter, 16) && aligned(one.exp_avg, 16) && aligned(one.exp_avg_sq, 16) && aligned(one.gradient, 16) &&
                    aligned(one.rounded, 8);
  const std::uint64_t fours = wide ? size / width : 0;
  for_each_async(fours, AdamWFour{one}, stream);
  const std::uint64_t done = fours * width;
  const AdamWElement rest{one.parameter + done,
                          one.exp_avg + done,
                          one.exp_avg_sq + done,
                          one.gradient + done,
                          one.rounded == nullptr ? nullptr : one.rounded + done,
                          one.update};
  for_each_async(size - done, rest, stream);
}

}  // namespace elrun::inline v0
