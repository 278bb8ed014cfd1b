#include "kernels/cuda/launch.cuh"
#include "kernels/momentum.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

// Four elements per thread where all addresses allow it: one 16-byte access per array instead of four.
constexpr std::uint64_t width = 4;

template <class Functor>
struct Element {
  float* __restrict__ parameter;
  float* __restrict__ moment;
  const float* __restrict__ gradient;
  bf16* __restrict__ rounded;  // may be null
  Functor update;

  __device__ void operator()(std::uint64_t i) const {
    float p = parameter[i], m = moment[i];
    update(p, m, gradient[i]);
    parameter[i] = p;
    moment[i] = m;
    if (rounded != nullptr) rounded[i] = to_bf16(p);
  }
};

template <class Functor>
struct Four {
  Element<Functor> one;
  __device__ void operator()(std::uint64_t i) const {
    float4 p = reinterpret_cast<float4*>(one.parameter)[i];
    float4 m = reinterpret_cast<float4*>(one.moment)[i];
    const float4 g = reinterpret_cast<const float4*>(one.gradient)[i];
    one.update(p.x, m.x, g.x);
    one.update(p.y, m.y, g.y);
    one.update(p.z, m.z, g.z);
    one.update(p.w, m.w, g.w);
    reinterpret_cast<float4*>(one.parameter)[i] = p;
    reinterpret_cast<float4*>(one.moment)[i] = m;
    if (one.rounded != nullptr)
      reinterpret_cast<ushort4*>(one.rounded)[i] = ushort4{to_bf16(p.x).bits, to_bf16(p.y).bits, to_bf16(p.z).bits, to_bf16(p.w).bits};
  }
};

bool aligned(const void* pointer, std::uint64_t bytes) { return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0; }

template <class Functor>
void run_async(DeviceSpan<float> parameter, DeviceSpan<float> moment, DeviceSpan<const float> gradient, const Functor& update,
               DeviceSpan<bf16> rounded, Stream stream) {
  const std::uint64_t size = parameter.size;
  ELRUN_ASSERT(moment.size == size && gradient.size == size);
  ELRUN_ASSERT(rounded.data == nullptr || rounded.size == size);
  const Element<Functor> one{parameter.data, moment.data, gradient.data, rounded.data, update};
  const bool wide = aligned(one.parameter, 16) && aligned(one.moment, 16) && aligned(one.gradient, 16) && aligned(one.rounded, 8);
  const std::uint64_t fours = wide ? size / width : 0;
  for_each_async(fours, Four<Functor>{one}, stream);
  const std::uint64_t done = fours * width;
  const Element<Functor> rest{one.parameter + done, one.moment + done, one.gradient + done,
                              one.rounded == nullptr ? nullptr : one.rounded + done, update};
  for_each_async(size - done, rest, stream);
}

}  // namespace

void sgd_async(DeviceSpan<float> parameter, DeviceSpan<float> moment, DeviceSpan<const float> gradient, const SgdStep& step,
               DeviceSpan<bf16> rounded, Stream stream) {
  run_async(parameter, moment, gradient, SgdFunctor{step}, rounded, stream);
}

void lion_async(DeviceSpan<float> parameter, DeviceSpan<float> moment, DeviceSpan<const float> gradient, const LionStep& step,
                DeviceSpan<bf16> rounded, Stream stream) {
  run_async(parameter, moment, gradient, LionFunctor{step}, rounded, stream);
}

}  // namespace elrun::inline v0
