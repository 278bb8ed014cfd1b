// The layers of the samples on a device: each gives the bits that the host's gives, whatever the order of streams, blocks and threads.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <tuple>
#include <vector>

#include "samples/nn/block.hpp"
#include "tests/devices/nn_layers.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/catch.hpp"

using namespace nn;
using nn::test::Array;
using nn::test::joined;

namespace {

/// `layer(setting)` returns everything that it wrote.
template <class Layer>
void check_same_bits(const Layer& layer) {
  const auto [expected, got] = nn::test::on_both(layer);
  REQUIRE(expected.size() == got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("element " << i);
    REQUIRE(std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(expected[i]));
  }
}

}  // namespace

TEST_CASE("what a program gives to the device may change at once, whenever the copy reads it", "[devices]") {
  fakegpu::set_pageable_late(true);
  constexpr std::size_t count = 500;
  const elrun::OwnedStream stream{nn::test::device};
  nn::DeviceEngine engine{stream.view()};
  auto held = engine.ids(count);
  const auto array = engine.array(count), copied = engine.array(3 * count);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    fakegpu::set_seed(seed);
    std::vector<std::int32_t> ids(count);
    Array values(count);
    for (std::size_t turn = 0; turn < 3; ++turn) {  // more than the halves of the staging
      std::ranges::fill(ids, static_cast<std::int32_t>(turn)), std::ranges::fill(values, static_cast<float>(turn));
      const auto* const at = held.hold(ids);
      engine.write(values, array.data());
      std::ranges::fill(ids, -1), std::ranges::fill(values, -1.0f);
      REQUIRE(cudaMemcpyAsync(copied.data() + turn * count, turn == 1 ? static_cast<const void*>(array.data()) : at, count * sizeof(float),
                              cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream.view().handle())) == cudaSuccess);
    }
    Array got(3 * count);
    engine.read(copied.data(), got);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t turn = i / count;
      const float said = turn == 1 ? got[i] : static_cast<float>(std::bit_cast<std::int32_t>(got[i]));
      REQUIRE(said == static_cast<float>(turn));
    }
  }
  fakegpu::set_pageable_late(false);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a linear layer has the host's bits on a device, whole tiles and rims alike", "[devices]") {
  const auto [rows, in, out] =
      GENERATE(std::tuple<std::size_t, std::size_t, std::size_t>{7, 9, 5}, std::tuple{std::size_t{64}, std::size_t{16}, std::size_t{64}},
               std::tuple{std::size_t{65}, std::size_t{33}, std::size_t{70}}, std::tuple{std::size_t{1}, std::size_t{130}, std::size_t{3}});
  CAPTURE(rows, in, out);
  check_same_bits([&, rows = rows, in = in, out = out](auto& at) { return nn::test::linear(at, rows, in, out); });
}

TEST_CASE("a layer norm has the host's bits on a device", "[devices]") {
  const auto [rows, c] = GENERATE(std::pair<std::size_t, std::size_t>{5, 37}, std::pair<std::size_t, std::size_t>{34, 16},
                                  std::pair<std::size_t, std::size_t>{1, 3});
  CAPTURE(rows, c);
  check_same_bits([&, rows = rows, c = c](auto& at) { return nn::test::norm(at, rows, c); });
}

TEST_CASE("causal attention has the host's bits on a device", "[devices]") {
  const std::size_t context = GENERATE(1u, 5u, 19u);
  check_same_bits([&](auto& at) { return nn::test::attention(at, 2, context, 24, 3); });
}

TEST_CASE("embeddings, GELU and cross-entropy have the host's bits on a device, also where a token comes twice", "[devices]") {
  check_same_bits([](auto& at) { return nn::test::ends_of_a_model(at); });
}

TEST_CASE("a block has the host's bits on a device, forward and backward", "[devices]") {
  const BlockShape shape{.batch = 2, .context = 9, .channels = 20, .heads = 2};
  const std::size_t c = shape.channels, elements = shape.rows() * c;
  const std::vector<std::size_t> sizes{c, c, 3 * c * c, c * c, c, c, 4 * c * c, 4 * c * c};
  check_same_bits([&](auto& at) {
    using E = std::remove_reference_t<decltype(at.engine)>;
    std::vector<float*> w, g;
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      w.push_back(at.put(test::random(sizes[i], 10 + i, sizes[i] > c ? 0.2f : 1.0f)));
      g.push_back(at.put(Array(sizes[i])));
    }
    BlockActivations<E> kept{at.engine, shape};
    BlockScratch<E> scratch{at.engine, shape};
    const float* const x = at.put(test::random(elements, 1));
    float *const y = at.room(elements), *const dx = at.put(test::random(elements, 2));
    const BlockTensors<const float> weights{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]};
    block_forward(at.engine, shape, weights, x, kept, scratch, y);
    block_backward(at.engine, shape, weights, BlockTensors<float>{g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]}, x, kept, scratch, dx);
    Array out = joined({at.read(y, elements), at.read(dx, elements)});
    for (std::size_t i = 0; i < sizes.size(); ++i) out = joined({out, at.read(g[i], sizes[i])});
    return out;
  });
}

TEST_CASE("relu, dropout, and what is done row by row have the host's bits on a device", "[devices]") {
  check_same_bits([](auto& at) { return nn::test::rows_of_a_layer(at); });
}

TEST_CASE("a convolution has the host's bits on a device, with groups of images that are full and not", "[devices]") {
  const std::size_t images = GENERATE(1u, 4u, 5u);
  CAPTURE(images);
  check_same_bits([&](auto& at) { return nn::test::convolution(at, images); });
}

TEST_CASE("the maximum over 2 x 2 pixels has the host's bits on a device, also where two are equal and where dropout is off", "[devices]") {
  const std::uint32_t dropped = GENERATE(0u, 64u);
  check_same_bits([&](auto& at) { return nn::test::pooling(at, dropped); });
}

TEST_CASE("an array whose stream's work comes to no end is kept, and nobody waits for it", "[devices]") {
  const elrun::OwnedStream stream{elrun::Device{elrun::DeviceKind::cuda, 0}};
  DeviceEngine engine{stream.view()};
  const std::size_t before = fakegpu::holdings().allocations;
  {
    const auto a = engine.array(16), b = engine.array(16), c = engine.array(16);
    for (const auto* array : {&a, &b, &c}) engine.fill_with_zeros(array->data(), array->size());
    fakegpu::set_faults("slow:1:60000");
    Linear{4, 4}.forward(engine, 4, a.data(), b.data(), c.data());
    fakegpu::set_faults("");
  }
  CHECK(fakegpu::holdings().allocations == before + 3);
}
