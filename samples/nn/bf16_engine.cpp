#include "samples/nn/bf16_engine.hpp"

#include <bit>
#include <string>
#include <vector>

#include "samples/nn/block.inl"
#include "samples/nn/cuda.cuh"

namespace nn {
namespace {

cudaStream_t native(elrun::Stream stream) { return static_cast<cudaStream_t>(stream.handle()); }

/// To nearest, ties to even. Of finite numbers.
elrun::bf16 rounded(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

}  // namespace

Bf16Engine::Bf16Engine(elrun::Stream stream, std::size_t widest)
    : stream_{DeviceEngine{stream}.stream()}, products_{stream}, parts_{stream, 2 * most_parts * widest} {}

std::string Bf16Engine::numeric(elrun::Device device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties");
  return std::string{"bf16 on "} + properties.name + " by " + CublasLt::version();
}

void Bf16Engine::fill_with_zeros(elrun::bf16* data, std::size_t count) {
  check(cudaMemsetAsync(data, 0, count * sizeof(elrun::bf16), native(stream_)), "cudaMemsetAsync");
}

void Bf16Engine::write(std::span<const float> from, elrun::bf16* to) {
  std::vector<elrun::bf16> values(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) values[i] = rounded(from[i]);
  check(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(elrun::bf16), cudaMemcpyHostToDevice, native(stream_)),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(native(stream_)), "cudaStreamSynchronize");  // as DeviceEngine::write
}

void Bf16Engine::read(const elrun::bf16* from, std::span<float> to) {
  std::vector<elrun::bf16> values(to.size());
  check(cudaMemcpyAsync(values.data(), from, values.size() * sizeof(elrun::bf16), cudaMemcpyDeviceToHost, native(stream_)),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(native(stream_)), "cudaStreamSynchronize");
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::bit_cast<float>(std::uint32_t{values[i].bits} << 16);
}

void Bf16Engine::read(const float* from, std::span<float> to) {
  check(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, native(stream_)), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(native(stream_)), "cudaStreamSynchronize");
}

void Linear::prepare(Bf16Engine& engine, std::size_t rows) const {
  const auto x = engine.array(rows * in), y = engine.array(rows * out), weight = engine.array(in * out);
  const auto gradient = engine.floats(in * out);
  for (const auto* array : {&x, &y, &weight}) engine.fill_with_zeros(array->data(), array->size());
  check(cudaMemsetAsync(gradient.data(), 0, in * out * sizeof(float), native(engine.stream())), "cudaMemsetAsync");
  forward(engine, rows, x.data(), weight.data(), y.data());
  backward_input(engine, rows, y.data(), weight.data(), x.data());
  backward_weight(engine, rows, y.data(), x.data(), gradient.data());
}
void Linear::forward(Bf16Engine& engine, std::size_t rows, const bf16* x, const bf16* weight, bf16* y, Into into) const {
  engine.products().product({rows, out, in}, {x}, {weight, true}, y, into);
}
void Linear::backward_input(Bf16Engine& engine, std::size_t rows, const bf16* dy, const bf16* weight, bf16* dx) const {
  engine.products().product({rows, in, out}, {dy}, {weight}, dx);
}
void Linear::backward_weight(Bf16Engine& engine, std::size_t rows, const bf16* dy, const bf16* x, float* dweight) const {
  engine.products().product({out, in, rows}, {dy, true}, {x}, dweight, Into::sum);
}

NN_BLOCK(Bf16Engine)

}  // namespace nn
