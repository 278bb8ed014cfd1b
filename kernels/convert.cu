#include "kernels/convert.hpp"
#include "kernels/cuda/wide.cuh"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

struct Round {
  static constexpr unsigned width = 8, in_flight = 2;
  struct Group {
    float4 in[2];
  };
  const float* in;
  bf16* out;
  __device__ void one(std::uint64_t i) const { out[i] = to_bf16(in[i]); }
  __device__ Group load(std::uint64_t i) const { return {{load_wide<float4>(in + i), load_wide<float4>(in + i + four)}}; }
  __device__ void finish(std::uint64_t i, const Group& g) const { store_wide(out + i, join(to_bf16(g.in[0]), to_bf16(g.in[1]))); }
};

/// Four at a time, so that a warp writes what adjoins. With eight, each store has every other 16 bytes, and a third of the rate is lost.
struct Widen {
  static constexpr unsigned width = 4, in_flight = 4;
  using Group = uint2;
  const bf16* in;
  float* out;
  __device__ void one(std::uint64_t i) const { out[i] = to_float(in[i]); }
  __device__ Group load(std::uint64_t i) const { return load_wide<uint2>(in + i); }
  __device__ void finish(std::uint64_t i, const Group& g) const { store_wide(out + i, to_float(halves(g.x, g.y))); }
};

}  // namespace

void to_bf16_async(DeviceSpan<const float> in, DeviceSpan<bf16> out, Stream stream) {
  ELRUN_ASSERT(in.size == out.size);
  wide_async(in.size, head_of(Round::width, in.data, out.data), Round{in.data, out.data}, stream);
}

void to_float_async(DeviceSpan<const bf16> in, DeviceSpan<float> out, Stream stream) {
  ELRUN_ASSERT(in.size == out.size);
  constexpr unsigned halves_of_a_border = 8;  // both arrays begin on borders of 16 bytes after fewer elements than this, or never
  wide_async(in.size, head_of(halves_of_a_border, in.data, out.data), Widen{in.data, out.data}, stream);
}

}  // namespace elrun::inline v0
