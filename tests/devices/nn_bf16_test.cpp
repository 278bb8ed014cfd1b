// The layers of the samples in bf16, on fake devices: what the host computes in float from the same rounded inputs, as close as bf16 allows; the same bits whatever the
// order of streams, blocks and threads.

#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "samples/nn/block.hpp"
#include "tests/devices/nn_bf16_layers.hpp"
#include "tests/support/catch.hpp"

using namespace nn;
using namespace nn::test::in_bf16;

namespace {

/// `layer(at)` returns what the layer wrote, in parts that have each a scale of their own.
template <class Layer>
void check_close(const Layer& layer, float tolerance = 0.01f) {
  OnHost host;
  const std::vector<Array> expected = layer(host);
  std::vector<Array> got;
  {
    OnDevice device;
    got = layer(device);
  }
  OnDevice again;
  CHECK(layer(again) == got);
  REQUIRE(got.size() == expected.size());
  for (std::size_t part = 0; part < got.size(); ++part) {
    REQUIRE(got[part].size() == expected[part].size());
    double error = 0, size = 0;
    for (std::size_t i = 0; i < got[part].size(); ++i) {
      error += std::pow(got[part][i] - expected[part][i], 2);
      size += std::pow(expected[part][i], 2);
    }
    INFO("part " << part << ": error " << std::sqrt(error) << " of " << std::sqrt(size));
    CHECK(std::sqrt(error) <= tolerance * std::sqrt(size) + 1e-6);
  }
}

}  // namespace

TEST_CASE("a linear layer in bf16 is the host's as close as bf16 allows", "[devices]") {
  const auto [rows, in, out] =
      GENERATE(std::tuple<std::size_t, std::size_t, std::size_t>{8, 16, 24}, std::tuple{std::size_t{40}, std::size_t{8}, std::size_t{64}});
  CAPTURE(rows, in, out);
  check_close([&, rows = rows, in = in, out = out](auto& at) { return linear(at, rows, in, out); });
}

TEST_CASE("a layer norm in bf16 is the host's as close as bf16 allows, with more rows than parts of their sums", "[devices]") {
  const auto [rows, c] = GENERATE(std::pair<std::size_t, std::size_t>{5, 40}, std::pair<std::size_t, std::size_t>{301, 16},
                                  std::pair<std::size_t, std::size_t>{2, 256});
  CAPTURE(rows, c);
  check_close([&, rows = rows, c = c](auto& at) { return norm(at, rows, c); });
}

TEST_CASE("attention in bf16 is the host's as close as bf16 allows, in one tile and in several, full and not", "[devices]") {
  const auto [context, size, heads] =
      GENERATE(std::tuple<std::size_t, std::size_t, std::size_t>{1, 16, 1}, std::tuple{std::size_t{9}, std::size_t{16}, std::size_t{2}},
               std::tuple{std::size_t{64}, std::size_t{32}, std::size_t{1}}, std::tuple{std::size_t{70}, std::size_t{64}, std::size_t{1}},
               std::tuple{std::size_t{130}, std::size_t{16}, std::size_t{2}});
  CAPTURE(context, size, heads);
  check_close(
      [&, context = context, size = size, heads = heads](auto& at) { return attention(at, context < 64 ? 2 : 1, context, size, heads); });
}

TEST_CASE("embeddings and GELU in bf16 are the host's as close as bf16 allows, also where a token comes in far rows", "[devices]") {
  check_close([](auto& at) { return ends_of_a_model(at); });
}

TEST_CASE("cross-entropy in bf16 matches the host within bf16, for many rows per block and rows beyond shared memory", "[devices]") {
  const auto [rows, classes] = GENERATE(std::pair<std::size_t, std::size_t>{75, 1040}, std::pair<std::size_t, std::size_t>{2, 8},
                                        std::pair<std::size_t, std::size_t>{3, 50304}, std::pair<std::size_t, std::size_t>{3, 60000});
  CAPTURE(rows, classes);
  check_close([&, rows = rows, classes = classes](auto& at) { return loss(at, rows, classes); });
}

TEST_CASE("a block in bf16 is the host's as close as bf16 allows, forward and backward", "[devices]") {
  const BlockShape shape{.batch = 2, .context = 12, .channels = 32, .heads = 2};
  const std::size_t c = shape.channels, elements = shape.rows() * c;
  const std::vector<std::size_t> sizes{c, c, 3 * c * c, c * c, c, c, 4 * c * c, 4 * c * c};
  check_close(
      [&](auto& at) {
        using E = typename std::remove_reference_t<decltype(at)>::E;
        std::vector<typename E::Value*> w;
        std::vector<float*> g;
        for (std::uint32_t i = 0; i < sizes.size(); ++i) {
          w.push_back(at.put(random(sizes[i], 10 + i, sizes[i] > c ? 0.2f : 1.0f)));
          g.push_back(at.floats(Array(sizes[i])));
        }
        BlockActivations<E> kept{at.engine, shape};
        BlockScratch<E> scratch{at.engine, shape};
        const auto* const x = at.put(random(elements, 1));
        auto *const y = at.put(Array(elements)), *const dx = at.put(random(elements, 2));
        block_prepare(at.engine, shape);
        block_forward(at.engine, shape, BlockWeights<E>{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]}, x, kept, scratch, y);
        block_backward(at.engine, shape, BlockWeights<E>{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]},
                       BlockTensors<float>{g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]}, x, kept, scratch, dx);
        std::vector<Array> out{at.read(y, elements), at.read(dx, elements)};
        for (std::size_t i = 0; i < sizes.size(); ++i) out.push_back(at.read(g[i], sizes[i]));
        return out;
      },
      0.03f);  // through a dozen roundings
}
