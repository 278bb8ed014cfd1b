#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wide.cuh"
#include "kernels/update.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

static_assert(update_tile % (four * block_threads) == 0);
constexpr std::uint64_t most_blocks = (std::uint64_t{1} << 31) - 1;  // of a grid

template <class Functor>
constexpr unsigned moments_of = std::is_same_v<Functor, AdamWFunctor> ? 2 : 1;

/// Where one run begins in each array.
template <class Functor>
struct Operands {
  float* parameter;
  float* moment[moments_of<Functor>];
  const float* gradient;
  bf16* rounded;  // may be null

  __device__ Operands(const UpdateArrays& arrays, const UpdateRun& run)
      : parameter{arrays.parameter + run.parameter},
        gradient{arrays.gradient + run.gradient},
        rounded{arrays.rounded == nullptr ? nullptr : arrays.rounded + run.parameter} {
    for (unsigned m = 0; m < moments_of<Functor>; ++m) moment[m] = arrays.moments[m] + run.moment;
  }
  /// Whether all arrays are on a border of four elements after `head` of them.
  __device__ bool wide_after(std::uint64_t head) const {
    bool all = on_border(gradient + head, 16) && (rounded == nullptr || on_border(rounded + head, 8));
    for (unsigned m = 0; m < moments_of<Functor>; ++m) all = all && on_border(moment[m] + head, 16);
    return all;
  }
};

template <class Functor>
__device__ void apply(const Functor& update, float& p, float (&moments)[moments_of<Functor>], float g) {
  if constexpr (moments_of<Functor> == 2) update(p, moments[0], moments[1], g);
  else update(p, moments[0], g);
}

template <class Functor>
__device__ void update_element(const Operands<Functor>& at, std::uint64_t i, const Functor& update) {
  constexpr unsigned count = moments_of<Functor>;
  float p = at.parameter[i], moments[count];
  for (unsigned m = 0; m < count; ++m) moments[m] = at.moment[m][i];
  apply(update, p, moments, at.gradient[i]);
  at.parameter[i] = p;
  for (unsigned m = 0; m < count; ++m) at.moment[m][i] = moments[m];
  if (at.rounded != nullptr) at.rounded[i] = to_bf16(p);
}

/// Elements i to i + 3. All loads come before the first use.
template <class Functor>
__device__ void update_four(const Operands<Functor>& at, std::uint64_t i, const Functor& update) {
  constexpr unsigned count = moments_of<Functor>;
  auto p = load_wide<float4>(at.parameter + i);
  float4 moment[count];
  for (unsigned m = 0; m < count; ++m) moment[m] = load_wide<float4>(at.moment[m] + i);
  const auto g = load_wide<float4>(at.gradient + i);
  const auto one = [&](float float4::*lane) {
    float moments[count];
    for (unsigned m = 0; m < count; ++m) moments[m] = moment[m].*lane;
    apply(update, p.*lane, moments, g.*lane);
    for (unsigned m = 0; m < count; ++m) moment[m].*lane = moments[m];
  };
  one(&float4::x), one(&float4::y), one(&float4::z), one(&float4::w);
  store_wide(at.parameter + i, p);
  for (unsigned m = 0; m < count; ++m) store_wide(at.moment[m] + i, moment[m]);
  if (at.rounded != nullptr) {
    const ushort4 half = to_bf16(p);
    store_wide(at.rounded + i, uint2{half.x | unsigned{half.y} << 16, half.z | unsigned{half.w} << 16});
  }
}

/// A block per tile, and as many blocks as tiles: fewer blocks that take one tile after the other are slower (tests/gpu/RESULTS.md). Tiles of a run are shifted
/// by what lies before its first border, so that each begins on one.
template <class Functor>
__global__ void __launch_bounds__(block_threads) update_kernel(UpdateArrays arrays, UpdateTable table, Functor decaying, Functor plain) {
  for (std::uint64_t tile = blockIdx.x; tile < table.tiles; tile += gridDim.x) {
    const UpdateRun run = run_of_tile(table.runs, table.size, tile);
    const Operands<Functor> at{arrays, run};
    Functor update = plain;
    update.minus_decay = run.decays != 0 ? decaying.minus_decay : plain.minus_decay;
    const std::uint64_t before = until_border(at.parameter, 16);
    const bool wide = at.wide_after(before);
    const std::uint64_t shift = wide ? before : 0;
    const auto border = [&](std::uint64_t t) {
      const std::uint64_t at_tile = t * update_tile + shift;
      return at_tile < run.size ? at_tile : run.size;
    };
    const std::uint64_t t = tile - run.first_tile;
    const std::uint64_t first = border(t), end = border(t + 1);
    const std::uint64_t fours_end = wide ? first + (end - first) / four * four : first;
    for (std::uint64_t i = first + threadIdx.x * four; i < fours_end; i += block_threads * four) update_four(at, i, update);
    for (std::uint64_t i = fours_end + threadIdx.x; i < end; i += block_threads) update_element(at, i, update);
    if (t == 0 && threadIdx.x < first) update_element(at, threadIdx.x, update);
  }
}

template <class Functor>
void launch_update(const UpdateArrays& arrays, const UpdateTable& table, const Functor& decaying, const Functor& plain, Stream stream) {
  const auto grid = static_cast<unsigned>(std::min<std::uint64_t>(table.tiles, most_blocks));
  launch<update_kernel<Functor>>(grid, block_threads, 0, stream_of(stream), arrays, table, decaying, plain);
}

struct Pass {
  const UpdateArrays& arrays;
  const UpdateTable& table;
  Stream stream;
  void operator()(AdamWStep s) const { run<AdamWFunctor>(s); }
  void operator()(SgdStep s) const { run<SgdFunctor>(s); }
  void operator()(LionStep s) const { run<LionFunctor>(s); }
  template <class Functor, class Step>
  void run(Step s) const {
    const Functor decaying{s};
    s.weight_decay = 0;
    launch_update(arrays, table, decaying, Functor{s}, stream);
  }
};

}  // namespace

void update_async(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step, Stream stream) {
  if (table.tiles == 0) return;
  std::visit(Pass{arrays, table, stream}, step);
}

}  // namespace elrun::inline v0
