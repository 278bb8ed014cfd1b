#include "samples/nn/conv.hpp"

#include <algorithm>

namespace nn {
namespace {

// Where the pixels of a height x width window on rows of `stride` pixels begin.
std::vector<std::uint32_t> pixel_table(std::size_t height, std::size_t width, std::size_t stride, std::size_t channels) {
  std::vector<std::uint32_t> table;
  for (std::size_t y = 0; y < height; ++y)
    for (std::size_t x = 0; x < width; ++x) table.push_back(static_cast<std::uint32_t>((y * stride + x) * channels));
  return table;
}
// The same, channel by channel.
std::vector<std::uint32_t> element_table(std::size_t height, std::size_t width, std::size_t stride, std::size_t channels) {
  std::vector<std::uint32_t> table;
  for (const std::uint32_t pixel : pixel_table(height, width, stride, channels))
    for (std::size_t c = 0; c < channels; ++c) table.push_back(pixel + static_cast<std::uint32_t>(c));
  return table;
}

}  // namespace

Convolution::Convolution(std::size_t height, std::size_t width, std::size_t in, std::size_t out, std::size_t window)
    : height_{height},
      width_{width},
      in_{in},
      out_{out},
      window_{window},
      pixels_{pixel_table(out_height(), out_width(), width, in)},
      taps_{element_table(window, window, width, in)},
      flat_{pixel_table(out_height(), out_width(), out_width(), out)},
      rimmed_{pixel_table(out_height(), out_width(), rimmed_width(), out)},
      channels_{element_table(1, 1, 1, out)},
      back_pixels_{pixel_table(height, width, rimmed_width(), out)},
      back_taps_{element_table(window, window, rimmed_width(), out)} {}

void Convolution::forward(Engine& engine, std::size_t worker, const float* x, const float* weight, const float* bias, float* y) const {
  for (std::size_t pixel = 0; pixel < pixels_.size(); ++pixel) std::copy_n(bias, out_, y + pixel * out_);
  engine.product_here(worker, {pixels_.size(), out_, taps_.size()}, Gathered{x, pixels_.data(), taps_.data()}, View{weight, out_},
                      {y, out_}, Into::sum);
}

void Convolution::backward_weight(Engine& engine, std::size_t worker, const float* dy, Rim rim, const float* x, float* dweight,
                                  Into into) const {
  const bool rimmed = rim == Rim::zeros;
  engine.product_here(worker, {taps_.size(), out_, pixels_.size()}, Gathered{x, taps_.data(), pixels_.data()},
                      Gathered{rimmed ? dy + rimmed_at(0, 0) : dy, rimmed ? rimmed_.data() : flat_.data(), channels_.data()},
                      {dweight, out_}, into);
}

void Convolution::turn(const float* weight, float* turned) const {
  for (std::size_t tap = 0; tap < window_ * window_; ++tap)
    for (std::size_t i = 0; i < in_; ++i)
      for (std::size_t o = 0; o < out_; ++o)
        turned[((window_ * window_ - 1 - tap) * out_ + o) * in_ + i] = weight[(tap * in_ + i) * out_ + o];
}

void Convolution::backward_input(Engine& engine, std::size_t worker, const float* rimmed_dy, const float* turned, float* dx) const {
  engine.product_here(worker, {back_pixels_.size(), in_, back_taps_.size()}, Gathered{rimmed_dy, back_pixels_.data(), back_taps_.data()},
                      View{turned, in_}, {dx, in_});
}

}  // namespace nn
