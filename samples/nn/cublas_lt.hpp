#pragma once
/// \file Products of bf16 matrices on a device's tensor cores, by cuBLASLt, which is looked for when a program asks for it.

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <elrun/device.hpp>
#include <elrun/tensor.hpp>

#include "samples/nn/device_engine.hpp"
#include "samples/nn/engine.hpp"
#include "samples/nn/recipe.hpp"

namespace nn {

using Algorithms = std::map<ProductShape, Algorithm>;

/// One algorithm for each shape of a product: the one that is given for it, else the library's first choice among those that add a sum up in one order (no split over k
/// whose parts meet by chance). So the same device and version give the same bits each time. Use from one thread.
class CublasLt {
 public:
  /// Throws elrun::Error where the library is not found, or does not start. The stream outlives it.
  explicit CublasLt(elrun::Stream stream, Algorithms given = {});
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// As `shape` says, in the order of the stream: `c` has floats or bf16. A fresh sum that becomes bf16 is rounded once. Throws elrun::Error where no algorithm is found, and where the library
  /// or the device refuses the given one (`fix_config`).
  void product(const ProductShape& shape, const elrun::bf16* a, const elrun::bf16* b, void* c, Into into = Into::fresh);

  /// "cuBLASLt 13.1.0", of the library that is used: a part of what a result depends on. Throws as the constructor does.
  [[nodiscard]] static std::string version();

  /// The first choice for each shape, on the calling thread's device. Throws as `product` does.
  [[nodiscard]] static Algorithms choose(std::span<const ProductShape> shapes);
  /// A sentence for each of them that the library or the calling thread's device refuses. Throws as the constructor does.
  [[nodiscard]] static std::vector<std::string> refused(const Algorithms& algorithms);

 private:
  struct Library;
  struct Handle;
  struct Planned;

  const Library& library_;
  elrun::Stream stream_;
  DeviceArrayOf<std::byte> workspace_;
  Algorithms given_;
  std::unique_ptr<Handle> handle_;
  std::map<ProductShape, std::unique_ptr<Planned>> planned_;
};

}  // namespace nn
