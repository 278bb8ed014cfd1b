/// The idea: a line of elements goes through registers, over all ranks, and its result straight to its place. A line and not
/// more, since what a large fold waits for is memory, and a store that stands apart from its loads was slower by a third. The
/// loops over a line have no branches, so the compiler makes vectors of them. No bit depends on where a line begins, or on
/// the instructions: an element is folded by the same operations in the same order everywhere. But for the payload of a NaN: which
/// of several it has, is the compiler's choice.

#include "lib/comm/fold.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <fmt/format.h>

#include "kernels/convert.hpp"
#include "kernels/isa.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t line = 64;             // bytes that memory moves
constexpr std::size_t prefetch_page = 4096;  // where the processor's own reading ahead ends: four pages are read at the same time
constexpr std::size_t pages = 4;
constexpr std::size_t ahead = 2;  // lines of a page

/// What elements are folded in: bf16 in float.
template <class T>
struct Folded {
  using type = T;
};
template <>
struct Folded<bf16> {
  using type = float;
};

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
  template <class F>
  F operator()(F a, F b) const {
    return static_cast<F>(a + b);
  }
  template <class F>
  F last(F sum, std::size_t) const {
    return sum;
  }
};
struct Avg : Sum {
  template <class F>
  F last(F sum, std::size_t inputs) const {
    return sum / static_cast<F>(inputs);
  }
};
struct Min {
  template <class F>
  F operator()(F a, F b) const {
    return (a != a || a < b) ? a : b;
  }  // a NaN in b: a < b is false
  template <class F>
  F last(F least, std::size_t) const {
    return least;
  }
};
struct Max {
  template <class F>
  F operator()(F a, F b) const {
    return (a != a || a > b) ? a : b;
  }
  template <class F>
  F last(F most, std::size_t) const {
    return most;
  }
};

/// Nothing is assumed of the alignment.
template <class T>
ELRUN_INLINE typename Folded<T>::type load(const std::byte* from) {
  T x;
  std::memcpy(&x, from, sizeof x);
  return widen(x);
}
template <class T>
ELRUN_INLINE void store(std::byte* to, typename Folded<T>::type sum) {
  const T x = narrow<T>(sum);
  std::memcpy(to, &x, sizeof x);
}

/// Soon this line will be written. Peers have read it, mostly: to read it here and then to write it would be to ask twice. (As an
/// instruction, since the compiler's own word for it means reading on processors that may not have this one; those do nothing.)
ELRUN_INLINE void ask_for(const std::byte* place) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*place));
#else
  __builtin_prefetch(place, 1);
#endif
}

/// `n` elements that begin at this byte, in registers. All is read before anything is written.
template <class T, std::size_t n, class Inputs, class Op>
ELRUN_INLINE void fold_few(const Inputs& inputs, std::byte* out, std::size_t at, Op op) {
  using F = typename Folded<T>::type;
  std::array<F, n> sum;
  for (std::size_t i = 0; i < n; ++i) sum[i] = load<T>(inputs[0] + at + i * sizeof(T));
  for (std::size_t input = 1; input < inputs.size(); ++input) {
    const std::byte* const next = inputs[input] + at;
    for (std::size_t i = 0; i < n; ++i) sum[i] = op(sum[i], load<T>(next + i * sizeof(T)));
  }
  for (std::size_t i = 0; i < n; ++i) store<T>(out + at + i * sizeof(T), op.last(sum[i], inputs.size()));
}

template <class T, class Inputs, class Op>
void fold_all(const Inputs& all, std::byte* to, std::size_t count, Op op) {
  run_with(
      isa_of_this_machine(), ELRUN_LOOP {
        const Inputs inputs = all;  // where no store can reach
        std::byte* const out = to;
        constexpr std::size_t in_line = line / sizeof(T);
        const std::size_t size = count * sizeof(T);
        std::size_t at = 0;
        for (; at + pages * prefetch_page <= size; at += pages * prefetch_page) {
          for (std::size_t in_page = 0; in_page < prefetch_page; in_page += line) {
            for (std::size_t i = 0; i < pages; ++i) {
              const std::size_t here = at + i * prefetch_page + in_page;
              ask_for(out + here + ahead * line);
              fold_few<T, in_line>(inputs, out, here, op);
            }
          }
        }
        for (; at + line <= size; at += line) fold_few<T, in_line>(inputs, out, at, op);
        for (; at < size; at += sizeof(T)) fold_few<T, 1>(inputs, out, at, op);
      });
}

/// Without a loop over them where ranks are few, since it would be most of the instructions, and a processor looks so many ahead.
template <class T, class Op>
void fold_sum(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count, Op op) {
  if (inputs.size() == 2) fold_all<T>(std::array{inputs[0], inputs[1]}, out, count, op);
  else if (inputs.size() == 4) fold_all<T>(std::array{inputs[0], inputs[1], inputs[2], inputs[3]}, out, count, op);
  else fold_all<T>(inputs, out, count, op);
}

/// A sum of signed integers has the bits of that of unsigned ones. Whoever waits for the least or the most waits for few elements.
template <class T>
void fold_by(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      if constexpr (std::is_integral_v<T>) return fold_sum<std::make_unsigned_t<T>>(inputs, out, count, Sum{});
      else return fold_sum<T>(inputs, out, count, Sum{});
    case ReduceOp::avg:
      if constexpr (!std::is_integral_v<T>) fold_sum<T>(inputs, out, count, Avg{});
      return;  // of integers it was refused before: see check_reduction
    case ReduceOp::min: return fold_all<T>(inputs, out, count, Min{});
    case ReduceOp::max: return fold_all<T>(inputs, out, count, Max{});
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
  if (op == ReduceOp::avg && !floating) return invalid("ReduceOp::avg is not defined for integers: use sum and divide");
  return {};
}

}  // namespace elrun::inline v0
