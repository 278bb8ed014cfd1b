#pragma once
/// \file The arithmetic of the layers, once per instruction set, all with the same bits.

#include <cstddef>
#include <vector>

namespace nn {

/// Which vector instructions the arithmetic is compiled for.
enum class Isa { baseline, avx2, avx512 };

/// One table of functions per instruction set. `n` is always a number of elements.
///
/// Why the bits agree: an element of a product is one chain of fused multiply-adds in ascending order, a sum over a row
/// goes through sixteen lanes (element i into lane i mod 16) that are folded by halves, and everything else is a fixed
/// sequence per element. Sixteen lanes are one, two or four registers; that is the whole difference between the tables.
struct Kernels {
  std::size_t tile_rows, tile_columns;  ///< The product's register tile, and the widths of its packed panels.
  /// c[i][j] = (accumulate ? c[i][j] : 0) + sum over p of a(i, p) · b(p, j), p ascending. `a` holds panels of
  /// `tile_rows` rows, `b` panels of `tile_columns` columns, each panel p after p, padded to full width with anything
  /// finite.
  void (*product)(const float* a, const float* b, std::size_t rows, std::size_t columns, std::size_t k, float* c, std::size_t stride,
                  bool accumulate);
  /// y = (x - mean) / sqrt(variance + epsilon) · weight + bias over one row; keeps mean and 1/sqrt for the way back.
  void (*norm_forward)(const float* x, const float* weight, const float* bias, std::size_t n, float* y, float* mean, float* scale);
  /// dx += the row's gradient.
  void (*norm_backward)(const float* dy, const float* x, const float* weight, float mean, float scale, std::size_t n, float* dx);
  /// dweight[j] += dy · (x - mean) · scale, dbias[j] += dy, for one row and `n` columns.
  void (*norm_backward_weights)(const float* dy, const float* x, float mean, float scale, std::size_t n, float* dweight, float* dbias);
  /// x[0, n) = softmax(scale · x[0, n)), in place.
  void (*softmax)(float* x, std::size_t n, float scale);
  /// dp[0, n) = scale · p · (dp - sum(p · dp)), in place.
  void (*softmax_backward)(const float* p, float* dp, std::size_t n, float scale);
  void (*gelu_forward)(const float* x, std::size_t n, float* y);
  /// dx = dy · gelu'(x); `dx` may be `dy`.
  void (*gelu_backward)(const float* dy, const float* x, std::size_t n, float* dx);
  void (*relu_forward)(const float* x, std::size_t n, float* y);
  /// dx = dy · scale where y > 0, else 0; `dx` may be `dy`.
  void (*relu_backward)(const float* dy, const float* y, float scale, std::size_t n, float* dx);
  /// Of four rows: y = relu(the largest) · factor, and which of them it was, 0 to 3, the first of equal ones.
  void (*pool_forward)(const float* const* x, const float* factor, std::size_t n, float* y, float* which);
  /// g = dy · scale where y > 0, else 0; dx[which] = g, the other three 0; dbias += g.
  void (*pool_backward)(const float* dy, const float* y, float scale, const float* which, std::size_t n, float* const* dx, float* dbias);
  /// Returns log(sum(exp(x))) - x[target], and leaves (softmax(x) - one at target) · scale in x.
  float (*cross_entropy)(float* x, std::size_t n, std::size_t target, float scale);
  void (*add)(const float* a, const float* b, std::size_t n, float* y);  ///< y = a + b; `y` may be one of them.
  float (*sum)(const float* x, std::size_t n);
  void (*exp)(const float* x, std::size_t n, float* y);
  void (*log)(const float* x, std::size_t n, float* y);  ///< Of normal numbers above zero.
};

/// The table for `isa`, or null where this build or this processor lacks it. Baseline is never null.
[[nodiscard]] const Kernels* kernels(Isa isa);
[[nodiscard]] std::vector<Isa> available();  ///< Slowest first.
[[nodiscard]] const char* to_string(Isa isa);

}  // namespace nn
