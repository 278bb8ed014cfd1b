// The kernels for NN_ISA, compiled once per instruction set with that set's compiler flags.
//
// Nothing with a body from outside may be used here: an inline function of the standard library, compiled with
// instructions that the processor lacks, could be the copy that the linker keeps for the whole program.

#include <cstdint>

#include "samples/nn/kernels.hpp"
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace nn {
namespace NN_ISA {
namespace {

#define NN_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr std::size_t width = 16, rows_max = 8, blocks = 2;
#elif defined(__AVX2__)
constexpr std::size_t width = 8, rows_max = 6, blocks = 1;
#else
constexpr std::size_t width = 4, rows_max = 2, blocks = 1;
#endif
constexpr std::size_t lanes = 16, parts = lanes / width;

typedef float V __attribute__((vector_size(4 * width)));          // NOLINT: `using` drops the attribute in g++
typedef std::int32_t I __attribute__((vector_size(4 * width)));   // NOLINT
typedef std::uint32_t U __attribute__((vector_size(4 * width)));  // NOLINT

template <class To, class From>
NN_INLINE To as(From x) {
  return __builtin_bit_cast(To, x);
}
NN_INLINE V all(float x) { return x - V{}; }
NN_INLINE V fma(V a, V b, V c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  V r{};
  for (std::size_t i = 0; i < width; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#endif
}

NN_INLINE V rounded(I x) { return __builtin_convertvector(x, V); }

#include "samples/nn/functions.inl"

// Sixteen floats, in as many registers as it takes.
struct Lanes {
  V part[parts];
};
template <class F>
NN_INLINE Lanes map(F f, Lanes a) {
  Lanes r;
#pragma GCC unroll 4
  for (std::size_t i = 0; i < parts; ++i) r.part[i] = f(a.part[i]);
  return r;
}
template <class F>
NN_INLINE Lanes map(F f, Lanes a, Lanes b) {
  Lanes r;
#pragma GCC unroll 4
  for (std::size_t i = 0; i < parts; ++i) r.part[i] = f(a.part[i], b.part[i]);
  return r;
}
NN_INLINE Lanes operator+(Lanes a, Lanes b) {
  return map([](V x, V y) { return x + y; }, a, b);
}
NN_INLINE Lanes operator-(Lanes a, Lanes b) {
  return map([](V x, V y) { return x - y; }, a, b);
}
NN_INLINE Lanes operator*(Lanes a, Lanes b) {
  return map([](V x, V y) { return x * y; }, a, b);
}
NN_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
#pragma GCC unroll 4
  for (std::size_t i = 0; i < parts; ++i) c.part[i] = fma(a.part[i], b.part[i], c.part[i]);
  return c;
}
NN_INLINE Lanes all_lanes(float x) {
  Lanes r;
#pragma GCC unroll 4
  for (std::size_t i = 0; i < parts; ++i) r.part[i] = all(x);
  return r;
}
NN_INLINE Lanes load(const float* p) {
  Lanes r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
NN_INLINE void store(float* p, Lanes x) { __builtin_memcpy(p, &x, sizeof x); }
// The last, short block of a row: `fill` stands where the row has ended.
NN_INLINE Lanes load(const float* p, std::size_t n, float fill = 0) {
  if (n >= lanes) return load(p);
  Lanes r = all_lanes(fill);
  __builtin_memcpy(&r, p, n * sizeof(float));
  return r;
}
NN_INLINE void store(float* p, Lanes x, std::size_t n) {
  if (n >= lanes) return store(p, x);
  __builtin_memcpy(p, &x, n * sizeof(float));
}
template <class F>
NN_INLINE float fold(Lanes x, F f) {
  float v[lanes];
  __builtin_memcpy(v, &x, sizeof x);
  for (std::size_t h = lanes / 2; h > 0; h /= 2)
    for (std::size_t i = 0; i < h; ++i) v[i] = f(v[i], v[i + h]);
  return v[0];
}
NN_INLINE float fold_sum(Lanes x) {
  return fold(x, [](float a, float b) { return a + b; });
}
NN_INLINE Lanes larger(Lanes a, Lanes b) {
  return map([](V x, V y) { return x > y ? x : y; }, a, b);
}

// A lane that has nothing to add gets +0, which changes no sum: a lane starts at +0 and so is never -0.
float sum(const float* x, std::size_t n) {
  Lanes s = all_lanes(0);
  for (std::size_t i = 0; i < n; i += lanes) s = s + load(x + i, n - i);
  return fold_sum(s);
}
float largest(const float* x, std::size_t n) {
  Lanes m = all_lanes(x[0]);
  for (std::size_t i = 0; i < n; i += lanes) m = larger(m, load(x + i, n - i, x[0]));
  return fold(m, [](float a, float b) { return a > b ? a : b; });
}
template <class F>
NN_INLINE void each(const float* x, std::size_t n, float* y, F f) {
  for (std::size_t i = 0; i < n; i += lanes) store(y + i, f(load(x + i, n - i)), n - i);
}
template <class F>
NN_INLINE void each(const float* a, const float* b, std::size_t n, float* y, F f) {
  for (std::size_t i = 0; i < n; i += lanes) store(y + i, f(load(a + i, n - i), load(b + i, n - i)), n - i);
}

// One register tile of a product: its sums stay in registers while p runs. Written in V, not in Lanes: g++ keeps an
// array of vectors in registers, but not an array of structures of them.
template <bool accumulate>
NN_INLINE void tile(const float* a, const float* b, std::size_t k, float* c, std::size_t stride) {
  constexpr std::size_t registers = blocks * parts;
  V sum[rows_max][registers];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < rows_max; ++i)
#pragma GCC unroll 4
    for (std::size_t j = 0; j < registers; ++j) {
      sum[i][j] = V{};
      if (accumulate) __builtin_memcpy(&sum[i][j], c + i * stride + j * width, sizeof(V));
    }
  for (std::size_t p = 0; p < k; ++p, a += rows_max, b += blocks * lanes) {
    V row[registers];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < registers; ++j) __builtin_memcpy(&row[j], b + j * width, sizeof(V));
#pragma GCC unroll 16
    for (std::size_t i = 0; i < rows_max; ++i) {
      const V factor = all(a[i]);
#pragma GCC unroll 4
      for (std::size_t j = 0; j < registers; ++j) sum[i][j] = fma(factor, row[j], sum[i][j]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t i = 0; i < rows_max; ++i)
#pragma GCC unroll 4
    for (std::size_t j = 0; j < registers; ++j) __builtin_memcpy(c + i * stride + j * width, &sum[i][j], sizeof(V));
}

void product(const float* a, const float* b, std::size_t rows, std::size_t columns, std::size_t k, float* c,
             std::size_t stride, bool accumulate) {
  constexpr std::size_t columns_max = blocks * lanes;
  for (std::size_t j = 0; j < columns; j += columns_max)
    for (std::size_t i = 0; i < rows; i += rows_max) {
      const float* pa = a + i * k;
      const float* pb = b + j * k;
      float* pc = c + i * stride + j;
      const std::size_t m = rows - i < rows_max ? rows - i : rows_max,
                        n = columns - j < columns_max ? columns - j : columns_max;
      if (m == rows_max && n == columns_max) {
        accumulate ? tile<true>(pa, pb, k, pc, stride) : tile<false>(pa, pb, k, pc, stride);
        continue;
      }
      float edge[rows_max * columns_max] = {};  // a tile over the rim is computed whole, beside c
      if (accumulate)
        for (std::size_t r = 0; r < m; ++r)
          __builtin_memcpy(edge + r * columns_max, pc + r * stride, n * sizeof(float));
      tile<true>(pa, pb, k, edge, columns_max);
      for (std::size_t r = 0; r < m; ++r) __builtin_memcpy(pc + r * stride, edge + r * columns_max, n * sizeof(float));
    }
}

void norm_forward(const float* x, const float* weight, const float* bias, std::size_t n, float* y, float* mean,
                  float* scale) {
  const float count = static_cast<float>(n), m = sum(x, n) / count;
  Lanes squares = all_lanes(0);
  for (std::size_t i = 0; i < n; i += lanes) {
    const Lanes d = load(x + i, n - i, m) - all_lanes(m);
    squares = fma(d, d, squares);
  }
  const float s = 1.0f / __builtin_sqrtf(fold_sum(squares) / count + 1e-5f);
  for (std::size_t i = 0; i < n; i += lanes) {
    const Lanes normal = (load(x + i, n - i) - all_lanes(m)) * all_lanes(s);
    store(y + i, fma(normal, load(weight + i, n - i), load(bias + i, n - i)), n - i);
  }
  *mean = m;
  *scale = s;
}

// With g = dy · weight and h = (x - mean) · scale: dx = scale · (g - mean(g) - h · mean(g · h)).
void norm_backward(const float* dy, const float* x, const float* weight, float mean, float scale, std::size_t n,
                   float* dx) {
  Lanes sum_g = all_lanes(0), sum_gh = all_lanes(0);
  for (std::size_t i = 0; i < n; i += lanes) {
    const Lanes g = load(dy + i, n - i) * load(weight + i, n - i);
    sum_g = sum_g + g;
    sum_gh = fma(g, (load(x + i, n - i, mean) - all_lanes(mean)) * all_lanes(scale), sum_gh);
  }
  const float count = static_cast<float>(n);
  const Lanes mean_g = all_lanes(fold_sum(sum_g) / count), minus_mean_gh = all_lanes(-(fold_sum(sum_gh) / count));
  for (std::size_t i = 0; i < n; i += lanes) {
    const Lanes g = load(dy + i, n - i) * load(weight + i, n - i);
    const Lanes h = (load(x + i, n - i) - all_lanes(mean)) * all_lanes(scale);
    store(dx + i, fma(all_lanes(scale), fma(h, minus_mean_gh, g - mean_g), load(dx + i, n - i)), n - i);
  }
}

void norm_backward_weights(const float* dy, const float* x, float mean, float scale, std::size_t n, float* dweight,
                           float* dbias) {
  for (std::size_t i = 0; i < n; i += lanes) {
    const Lanes g = load(dy + i, n - i), h = (load(x + i, n - i) - all_lanes(mean)) * all_lanes(scale);
    store(dweight + i, fma(g, h, load(dweight + i, n - i)), n - i);
    store(dbias + i, g + load(dbias + i, n - i), n - i);
  }
}

// Leaves e^(scale · (x - largest)) in x and returns the sum.
float exponentials(float* x, std::size_t n, float scale, float top) {
  Lanes s = all_lanes(0);
  for (std::size_t i = 0; i < n; i += lanes) {
    const Lanes e = map([](V v) { return exp(v); }, (load(x + i, n - i) - all_lanes(top)) * all_lanes(scale));
    store(x + i, e, n - i);
    s = s + load(x + i, n - i);  // again from memory: beyond the row's end there is zero now
  }
  return fold_sum(s);
}

void softmax(float* x, std::size_t n, float scale) {
  const Lanes inverse = all_lanes(1.0f / exponentials(x, n, scale, largest(x, n)));
  each(x, n, x, [&](Lanes e) { return e * inverse; });
}

void softmax_backward(const float* p, float* dp, std::size_t n, float scale) {
  Lanes dot = all_lanes(0);
  for (std::size_t i = 0; i < n; i += lanes) dot = fma(load(p + i, n - i), load(dp + i, n - i), dot);
  const Lanes d = all_lanes(fold_sum(dot)), s = all_lanes(scale);
  each(p, dp, n, dp, [&](Lanes q, Lanes dq) { return s * q * (dq - d); });
}

void gelu_forward(const float* x, std::size_t n, float* y) {
  each(x, n, y, [](Lanes v) { return map([](V u) { return gelu(u); }, v); });
}
void gelu_backward(const float* dy, const float* x, std::size_t n, float* dx) {
  each(dy, x, n, dx, [](Lanes d, Lanes v) { return d * map([](V u) { return gelu_slope(u); }, v); });
}

void relu_forward(const float* x, std::size_t n, float* y) {
  each(x, n, y, [](Lanes v) { return map([](V u) { return u > all(0) ? u : all(0); }, v); });
}
NN_INLINE Lanes where_positive(Lanes y, Lanes x) {
  return map([](V u, V v) { return u > all(0) ? v : all(0); }, y, x);
}
void relu_backward(const float* dy, const float* y, float scale, std::size_t n, float* dx) {
  each(dy, y, n, dx, [&](Lanes d, Lanes v) { return where_positive(v, d * all_lanes(scale)); });
}

void pool_forward(const float* const* x, const float* factor, std::size_t n, float* y, float* which) {
  for (std::size_t i = 0; i < n; i += lanes) {
    Lanes best = load(x[0] + i, n - i), chosen = all_lanes(0);
    for (std::size_t k = 1; k < 4; ++k) {
      const Lanes other = load(x[k] + i, n - i);
      for (std::size_t part = 0; part < parts; ++part) {
        const V o = other.part[part], b = best.part[part];
        chosen.part[part] = o > b ? all(static_cast<float>(k)) : chosen.part[part];
        best.part[part] = o > b ? o : b;
      }
    }
    store(y + i, where_positive(best, best * load(factor + i, n - i)), n - i);
    store(which + i, chosen, n - i);
  }
}
void pool_backward(const float* dy, const float* y, float scale, const float* which, std::size_t n, float* const* dx,
                   float* dbias) {
  for (std::size_t i = 0; i < n; i += lanes) {
    const Lanes g = where_positive(load(y + i, n - i), load(dy + i, n - i) * all_lanes(scale));
    const Lanes chosen = load(which + i, n - i);
    for (std::size_t k = 0; k < 4; ++k) {
      const float number = static_cast<float>(k);
      store(dx[k] + i, map([number](V c, V v) { return c == all(number) ? v : all(0); }, chosen, g), n - i);
    }
    store(dbias + i, load(dbias + i, n - i) + g, n - i);
  }
}

float cross_entropy(float* x, std::size_t n, std::size_t target, float scale) {
  const float top = largest(x, n), chosen = x[target];
  const float total = exponentials(x, n, 1.0f, top);
  const Lanes factor = all_lanes(scale / total);
  each(x, n, x, [&](Lanes e) { return e * factor; });
  x[target] -= scale;
  return log(all(total))[0] + (top - chosen);
}

void add(const float* a, const float* b, std::size_t n, float* y) {
  each(a, b, n, y, [](Lanes u, Lanes v) { return u + v; });
}
void exp_each(const float* x, std::size_t n, float* y) {
  each(x, n, y, [](Lanes v) { return map([](V u) { return exp(u); }, v); });
}
void log_each(const float* x, std::size_t n, float* y) {
  each(x, n, y, [](Lanes v) { return map([](V u) { return log(u); }, v); });
}

}  // namespace
}  // namespace NN_ISA

#define NN_TABLE_(isa) kernels_##isa
#define NN_TABLE(isa) NN_TABLE_(isa)
extern const Kernels NN_TABLE(NN_ISA);
const Kernels NN_TABLE(NN_ISA) = {
    .tile_rows = NN_ISA::rows_max,
    .tile_columns = NN_ISA::blocks * NN_ISA::lanes,
    .product = NN_ISA::product,
    .norm_forward = NN_ISA::norm_forward,
    .norm_backward = NN_ISA::norm_backward,
    .norm_backward_weights = NN_ISA::norm_backward_weights,
    .softmax = NN_ISA::softmax,
    .softmax_backward = NN_ISA::softmax_backward,
    .gelu_forward = NN_ISA::gelu_forward,
    .gelu_backward = NN_ISA::gelu_backward,
    .relu_forward = NN_ISA::relu_forward,
    .relu_backward = NN_ISA::relu_backward,
    .pool_forward = NN_ISA::pool_forward,
    .pool_backward = NN_ISA::pool_backward,
    .cross_entropy = NN_ISA::cross_entropy,
    .add = NN_ISA::add,
    .sum = NN_ISA::sum,
    .exp = NN_ISA::exp_each,
    .log = NN_ISA::log_each,
};

}  // namespace nn
