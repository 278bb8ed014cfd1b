#pragma once
/// \file Bf16Engine: what layers compute with on a device's tensor cores, in the place of DeviceEngine. Weights and activations are bf16, sums and gradients of
/// weights are float. The bits are the same each time on one kind of device with one version of cuBLASLt and one recipe, and are not the host's.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <elrun/device.hpp>
#include <elrun/tensor.hpp>

#include "samples/nn/block.hpp"
#include "samples/nn/cublas_lt.hpp"
#include "samples/nn/device_engine.hpp"

namespace nn {

/// Every product of a linear layer's forward pass, of its input's gradient and of its weight's, for as many rows.
[[nodiscard]] std::array<ProductShape, 3> products_of(const Linear& linear, std::size_t rows);

/// All work is in the order of one stream.
class Bf16Engine {
 public:
  using Value = elrun::bf16;
  using Array = DeviceArrayOf<elrun::bf16>;
  using Floats = DeviceArray;
  using Ids = DeviceIds;
  using Loss = elrun::DeviceScalar;

  /// As DeviceEngine. Rows of its layer norms have at most `widest` elements. Products are computed by the algorithms `given`, others by cuBLASLt's first choice. Throws elrun::Error where
  /// cuBLASLt is not found.
  Bf16Engine(elrun::Stream stream, std::size_t widest, Algorithms given = {});
  /// What the bits depend on: "bf16 on NVIDIA H100 80GB HBM3 by cuBLASLt 13.1.0". A part of a program's numeric class, so that neither workers on other devices nor
  /// a checkpoint of such are mixed in. Throws where cuBLASLt is not found.
  ///
  /// With a recipe: "bf16 on sm_90 with 132 multiprocessors by cuBLASLt 13.1.0, recipe 0123456789abcdef". The device's name had stood for the choice, which the recipe's hash now says. NVIDIA promises
  /// the same bits of one version on devices of one architecture and as many multiprocessors. The version stays, for the kernels behind an algorithm's numbers are another in another one.
  [[nodiscard]] static std::string numeric(elrun::Device device, const Recipe* recipe = nullptr);
  /// The recipe in the file at `path`, with the algorithms for `shapes` alone. Where there is no file, cuBLASLt chooses on this device, and writes one, which `written` then says. Of several
  /// processes the first that writes decides, and the others read that. Throws elrun::Error (`fix_config`) with all that is wrong: what cannot be read, another version of cuBLASLt, a shape that is
  /// missing, an algorithm that the library or the device refuses.
  [[nodiscard]] static Recipe recipe(const std::string& path, elrun::Device device, std::span<const ProductShape> shapes, bool& written);
  [[nodiscard]] elrun::Stream stream() const { return stream_; }
  [[nodiscard]] Array array(std::size_t count) const { return {stream_, count}; }
  [[nodiscard]] Floats floats(std::size_t count) const { return {stream_, count}; }
  [[nodiscard]] Ids ids(std::size_t count) const { return {stream_, count}; }
  void fill_with_zeros(elrun::bf16* data, std::size_t count);
  /// From memory of the host, rounded to nearest. As DeviceEngine::write.
  void write(std::span<const float> from, elrun::bf16* to);
  /// Waits for the work before it.
  void read(const elrun::bf16* from, std::span<float> to);
  void read(const float* from, std::span<float> to);

  [[nodiscard]] CublasLt& products() { return products_; }
  /// Where a sum over many rows keeps its parts: room for two rows of `widest` floats for each of `most_parts`.
  [[nodiscard]] float* parts() { return parts_.data(); }
  static constexpr std::size_t most_parts = 128;

 private:
  elrun::Stream stream_;
  CublasLt products_;
  DeviceArray parts_;
};

template <>
struct AttentionArray<Bf16Engine> {
  using Type = DeviceArray;
  static Type make(const Bf16Engine& engine, const BlockShape& shape) { return engine.floats(shape.rows() * shape.heads); }
};

}  // namespace nn
