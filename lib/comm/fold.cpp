/// The idea: a tile of elements small enough for the first cache is folded over all ranks, then the next tile. The loops
/// over a tile have no branches, so the compiler makes vectors of them; no bit depends on the tile's size.

#include "lib/comm/fold.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <fmt/format.h>

#include "kernels/convert.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t tile = 1024;

/// What elements are folded in: bf16 in float, signed integers in unsigned ones where the sum may wrap.
template <class T> struct Folded { using type = T; };
template <> struct Folded<bf16> { using type = float; };

template <class T>
typename Folded<T>::type widen(T x) {
  if constexpr (std::is_same_v<T, bf16>) return to_float(x);
  else return x;
}
template <class T, class F>
T narrow(F x) {
  if constexpr (std::is_same_v<T, bf16>) return to_bf16(x);
  else return x;
}

struct Sum {
  template <class F> F operator()(F a, F b) const {
    if constexpr (std::is_integral_v<F>) {
      using U = std::make_unsigned_t<F>;
      return static_cast<F>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
struct Min {
  template <class F> F operator()(F a, F b) const { return (a != a || a < b) ? a : b; }  // a NaN in b: a < b is false
};
struct Max {
  template <class F> F operator()(F a, F b) const { return (a != a || a > b) ? a : b; }
};

template <class T, class Op>
void fold(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count, Op op, [[maybe_unused]] bool average) {
  using F = typename Folded<T>::type;
  std::array<F, tile> sum;
  for (std::size_t begin = 0; begin < count; begin += tile) {
    const std::size_t n = std::min(tile, count - begin);
    const auto load = [](const std::byte* from, std::size_t i) {  // one load: nothing is assumed of the alignment
      T x;
      std::memcpy(&x, from + i * sizeof(T), sizeof(T));
      return widen(x);
    };
    const auto tile_of = [&](std::size_t input) { return inputs[input] + begin * sizeof(T); };
    const std::byte* const first = tile_of(0);
    if (inputs.size() == 1) {
      for (std::size_t i = 0; i < n; ++i) sum[i] = load(first, i);
    } else {
      const std::byte* const second = tile_of(1);
      for (std::size_t i = 0; i < n; ++i) sum[i] = op(load(first, i), load(second, i));
    }
    for (std::size_t input = 2; input < inputs.size(); ++input) {
      const std::byte* const next = tile_of(input);
      for (std::size_t i = 0; i < n; ++i) sum[i] = op(sum[i], load(next, i));
    }
    if constexpr (std::is_floating_point_v<F>) {
      if (average) for (std::size_t i = 0; i < n; ++i) sum[i] /= static_cast<F>(inputs.size());
    }
    std::byte* const to = out + begin * sizeof(T);
    for (std::size_t i = 0; i < n; ++i) {
      const T x = narrow<T>(sum[i]);
      std::memcpy(to + i * sizeof(T), &x, sizeof(T));
    }
  }
}

template <class T>
void fold_by(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return fold<T>(inputs, out, count, Sum{}, false);
    case ReduceOp::avg: return fold<T>(inputs, out, count, Sum{}, true);
    case ReduceOp::min: return fold<T>(inputs, out, count, Min{}, false);
    case ReduceOp::max: return fold<T>(inputs, out, count, Max{}, false);
  }
}

}  // namespace

void fold_ranks(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count, DType type, ReduceOp op) {
  switch (type) {
    case DType::f32: return fold_by<float>(inputs, out, count, op);
    case DType::bf16: return fold_by<bf16>(inputs, out, count, op);
    case DType::f64: return fold_by<double>(inputs, out, count, op);
    case DType::i32: return fold_by<std::int32_t>(inputs, out, count, op);
    case DType::i64: return fold_by<std::int64_t>(inputs, out, count, op);
    case DType::u8: return fold_by<std::uint8_t>(inputs, out, count, op);
    case DType::u32: return fold_by<std::uint32_t>(inputs, out, count, op);
    case DType::u64: return fold_by<std::uint64_t>(inputs, out, count, op);
  }
}

Result<void> check_reduction(DType type, ReduceOp op) {
  const bool floating = type == DType::f32 || type == DType::bf16 || type == DType::f64;
  if (op == ReduceOp::avg && !floating) return invalid("an average of integers is not one: sum them, and divide as you mean it");
  return {};
}

}  // namespace elrun::inline v0
