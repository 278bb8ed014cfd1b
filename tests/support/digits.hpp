#pragma once
/// \file A data set like MNIST that is made here: what class an image has shows in where it is bright.

#include <fstream>
#include <string>

#include <elrun/philox.hpp>

namespace elrun::test {

/// Writes PREFIX-images-idx3-ubyte and PREFIX-labels-idx1-ubyte with `count` images drawn from `seed`.
inline void write_digits(const std::string& directory, const std::string& prefix, std::uint32_t count, std::uint64_t seed) {
  const auto header = [](std::initializer_list<std::uint32_t> extents) {
    std::string out{0, 0, 8, static_cast<char>(extents.size())};
    for (const std::uint32_t e : extents)
      for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<char>(e >> shift));
    return out;
  };
  std::string images = header({count, 28, 28}), labels = header({count});
  Rng rng{seed};
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto label = static_cast<std::uint32_t>(rng.below(10));
    for (std::uint32_t y = 0; y < 28; ++y)
      for (std::uint32_t x = 0; x < 28; ++x) {
        const bool bright = y / 6 == label / 2 && (x < 14) == (label % 2 == 0);
        images.push_back(static_cast<char>(rng.below(100) + (bright ? 150 : 0)));
      }
    labels.push_back(static_cast<char>(label));
  }
  std::ofstream{directory + "/" + prefix + "-images-idx3-ubyte", std::ios::binary} << images;
  std::ofstream{directory + "/" + prefix + "-labels-idx1-ubyte", std::ios::binary} << labels;
}

}  // namespace elrun::test
