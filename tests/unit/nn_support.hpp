#pragma once
/// \file What the tests of samples/nn share: random arrays, engines to compare, and bits.

#include <cstddef>
#include <cstring>
#include <vector>

#include <elrun/random.hpp>
#include "samples/nn/engine.hpp"

namespace nn::test {

/// Normal numbers, scaled; another `name`, other numbers.
inline std::vector<float> random(std::size_t n, std::uint32_t name, float scale = 1) {
  const elrun::RandomStream stream{7, 0, name};
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = scale * stream.normal(i);
  return x;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Runs `f(engine)` on 1, 2 and 3 threads and on each instruction set that is here; true when all give the bits of the
/// first.
template <class F>
bool same_bits_everywhere(F f) {
  std::vector<float> first;
  for (const Isa isa : available())
    for (const std::size_t threads : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
      Engine engine{threads, isa};
      std::vector<float> got = f(engine);
      if (first.empty()) first = std::move(got);
      else if (!same_bits(first, got)) return false;
    }
  return true;
}

}  // namespace nn::test
