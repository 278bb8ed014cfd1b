#pragma once
/// \file Products of bf16 matrices on a device's tensor cores, by cuBLASLt, which is looked for when a program asks for it.

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include <elrun/device.hpp>
#include <elrun/tensor.hpp>

#include "samples/nn/device_engine.hpp"
#include "samples/nn/engine.hpp"

namespace nn {

/// A matrix of bf16 in a device's memory, row after row without gaps; `transposed`: what is multiplied is its transpose.
struct Factor {
  const elrun::bf16* data;
  bool transposed = false;
};

/// One algorithm for each shape of a product, the library's first choice among those that add a sum up in one order (no split over k whose parts meet by
/// chance), so the same device and version give the same bits each time. Use from one thread.
class CublasLt {
 public:
  /// Throws elrun::Error where the library is not found, or does not start. The stream outlives it.
  explicit CublasLt(elrun::Stream stream);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// c[rows][columns] (+)= a · b with a[rows][k] and b[k][columns], in the order of the stream. Sums are in float; a fresh one of bf16 is rounded once.
  void product(Extent extent, Factor a, Factor b, elrun::bf16* c, Into into = Into::fresh);
  void product(Extent extent, Factor a, Factor b, float* c, Into into = Into::fresh);

  /// "cuBLASLt 13.1.0", of the library that is used: a part of what a result depends on. Throws as the constructor does.
  [[nodiscard]] static std::string version();

 private:
  struct Library;
  struct Planned;
  struct Shape;
  void multiply(const Shape& shape, const void* a, const void* b, void* c);

  const Library& library_;
  elrun::Stream stream_;
  DeviceArrayOf<std::byte> workspace_;
  void* handle_ = nullptr;
  std::map<Shape, std::unique_ptr<Planned>> planned_;
};

}  // namespace nn
