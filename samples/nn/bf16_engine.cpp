#include "samples/nn/bf16_engine.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <elrun/result.hpp>

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

cudaDeviceProp properties_of(elrun::Device device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties");
  return properties;
}

ProductShape forward_of(const Linear& l, std::size_t rows) { return {rows, l.out, l.in, false, true, false}; }
ProductShape backward_input_of(const Linear& l, std::size_t rows) { return {rows, l.in, l.out, false, false, false}; }
ProductShape backward_weight_of(const Linear& l, std::size_t rows) { return {l.out, l.in, rows, true, false, true}; }

}  // namespace

Bf16Engine::Bf16Engine(elrun::Stream stream, std::size_t widest, Algorithms given)
    : stream_{DeviceEngine{stream}.stream()}, products_{stream, std::move(given)}, parts_{stream, 2 * most_parts * widest} {}

std::string Bf16Engine::numeric(elrun::Device device, const Recipe* recipe) {
  const cudaDeviceProp properties = properties_of(device);
  if (recipe == nullptr) return std::string{"bf16 on "} + properties.name + " by " + CublasLt::version();
  return "bf16 on sm_" + std::to_string(10 * properties.major + properties.minor) + " with " +
         std::to_string(properties.multiProcessorCount) + " multiprocessors by " + CublasLt::version() + ", recipe " + recipe->hash();
}

Recipe Bf16Engine::recipe(const std::string& path, elrun::Device device, std::span<const ProductShape> shapes, bool& written) {
  check(cudaSetDevice(device.index), "cudaSetDevice");  // as DeviceEngine does: cuBLASLt asks for the thread's
  written = false;
  std::optional<std::string> text = read_recipe(path);
  if (!text) {
    written = write_recipe(path, Recipe{CublasLt::version(), properties_of(device).name, CublasLt::choose(shapes)}.text());
    text = read_recipe(path);  // what a later start gets, too
  }
  std::vector<std::string> problems;
  if (!text) problems.emplace_back("it went away as it was read");
  Recipe all = parse_recipe(text.value_or(""), problems), used{all.library, all.device, {}};
  const bool same_library = all.library == CublasLt::version();
  if (!all.library.empty() && !same_library)
    problems.push_back("it is of " + all.library + ", and " + CublasLt::version() +
                       " is found here: the numbers of an algorithm mean another one there; install the same one on all nodes");
  for (const ProductShape& shape : shapes)
    if (const auto found = all.algorithms.find(shape); found != all.algorithms.end()) used.algorithms.insert(*found);
    else problems.push_back("it has no algorithm for " + to_string(shape));
  if (same_library) std::ranges::move(CublasLt::refused(used.algorithms), std::back_inserter(problems));
  if (problems.empty()) return used;
  constexpr std::size_t told = 20;
  std::string what = "recipe '" + path + "': ";
  for (std::size_t i = 0; i < std::min(problems.size(), told); ++i) what += problems[i] + "; ";
  if (problems.size() > told) what += "and " + std::to_string(problems.size() - told) + " more; ";
  throw elrun::Error{{.code = elrun::Code::mismatch,
                      .remedy = elrun::Remedy::fix_config,
                      .what = what + "name a file that does not exist, and one is written with this library's choice for this model"}};
}

std::array<ProductShape, 3> products_of(const Linear& linear, std::size_t rows) {
  return {forward_of(linear, rows), backward_input_of(linear, rows), backward_weight_of(linear, rows)};
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
  engine.products().product(forward_of(*this, rows), x, weight, y, into);
}
void Linear::backward_input(Bf16Engine& engine, std::size_t rows, const bf16* dy, const bf16* weight, bf16* dx) const {
  engine.products().product(backward_input_of(*this, rows), dy, weight, dx);
}
void Linear::backward_weight(Bf16Engine& engine, std::size_t rows, const bf16* dy, const bf16* x, float* dweight) const {
  engine.products().product(backward_weight_of(*this, rows), dy, x, dweight, Into::sum);
}

NN_BLOCK(Bf16Engine)

}  // namespace nn
