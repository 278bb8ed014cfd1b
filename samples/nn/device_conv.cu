// Convolutions and pooling on a device, with the host's bits (conv.hpp): element chains run over the window row by row, then over channels; sums over
// pixels run image after image, row by row, and have one owner.

#include "samples/nn/conv.hpp"
#include "samples/nn/device_kernels.cuh"
#include "samples/nn/layers.hpp"

namespace nn {
namespace {

// ---- products

/// Images seen through a window: element (pixel, tap). Pixels are those of the output, image after image.
struct SeenPixels {
  const float* data;
  std::size_t image;                               // elements of one
  std::size_t width, out_width, out_pixels;        // pixels
  std::size_t window_width, channels, of_a_group;  // of_a_group: elements from one matrix to the next
  [[nodiscard]] __device__ SeenPixels of(std::size_t number) const {
    SeenPixels one = *this;
    one.data += number * of_a_group;
    return one;
  }
  [[nodiscard]] __device__ float operator()(std::size_t pixel, std::size_t tap) const {
    const std::size_t within = pixel % out_pixels, place = tap / channels;
    const std::size_t row = within / out_width + place / window_width, column = within % out_width + place % window_width;
    return data[pixel / out_pixels * image + (row * width + column) * channels + tap % channels];
  }
  [[nodiscard]] __device__ bool row_adjoins() const { return true; }
};
/// The same, element (tap, pixel).
struct SeenTaps {
  SeenPixels pixels;
  [[nodiscard]] __device__ SeenTaps of(std::size_t number) const { return {pixels.of(number)}; }
  [[nodiscard]] __device__ float operator()(std::size_t tap, std::size_t pixel) const { return pixels(pixel, tap); }
  [[nodiscard]] __device__ bool row_adjoins() const { return false; }
};
/// A gradient of the output as the pixels of the input see it, element (pixel, tap), zeros around it.
struct SeenGradient {
  const float* data;
  std::size_t width, pixels, out_width, out_height, window, channels;  // channels: of the output
  [[nodiscard]] __device__ SeenGradient of(std::size_t) const { return *this; }
  [[nodiscard]] __device__ float operator()(std::size_t pixel, std::size_t tap) const {
    const std::size_t within = pixel % pixels, place = tap / channels;
    // Rows and columns with the rim, which is window - 1 wide.
    const std::size_t row = within / width + place / window, column = within % width + place % window;
    if (row < window - 1 || column < window - 1 || row >= window - 1 + out_height || column >= window - 1 + out_width) return 0.0f;
    const std::size_t at = (row - (window - 1)) * out_width + column - (window - 1);
    return data[(pixel / pixels * out_height * out_width + at) * channels + tap % channels];
  }
  [[nodiscard]] __device__ bool row_adjoins() const { return true; }
};
/// Weights turned around, element (tap of the output's channels, channel of the input).
struct TurnedWeights {
  const float* weight;
  std::size_t places, in, out;
  [[nodiscard]] __device__ TurnedWeights of(std::size_t) const { return *this; }
  [[nodiscard]] __device__ float operator()(std::size_t tap, std::size_t channel) const {
    return weight[((places - 1 - tap / out) * in + channel) * out + tap % out];
  }
  [[nodiscard]] __device__ bool row_adjoins() const { return false; }
};

/// The sums of channels over the pixels of a group of images.
struct SumsOfPixels {
  std::size_t images, group, outputs, channels;  // outputs: elements of an image
  const float* dy;
  float* sums;
  std::size_t apart;
  __device__ void operator()(std::size_t i) const {
    const std::size_t first = i / channels * group, last = first + group < images ? first + group : images;
    float sum = 0;
    for (std::size_t e = first * outputs + i % channels; e < last * outputs; e += channels) sum = sum + dy[e];
    sums[i / channels * apart + i % channels] = sum;
  }
};

// ---- pooling

/// Where the first of the four pixels of pooled element i is, and how far apart its pixels and rows are.
struct Squares {
  std::size_t height, width, channels;
  [[nodiscard]] __device__ std::size_t first(std::size_t i) const {
    const std::size_t pixel = i / channels, image = pixel / (height * width), row = pixel / width % height, column = pixel % width;
    return ((image * 2 * height + 2 * row) * 2 * width + 2 * column) * channels + i % channels;
  }
  [[nodiscard]] __device__ std::size_t of(unsigned which) const { return (which / 2 * 2 * width + which % 2) * channels; }
};
struct PoolForward {
  Squares squares;
  Dropout dropout;
  const float* x;
  float *y, *chosen;
  __device__ void operator()(std::size_t i) const {
    const float* const four = x + squares.first(i);
    float best = four[0];
    unsigned which = 0;
    for (unsigned k = 1; k < 4; ++k) {
      const float other = four[squares.of(k)];
      if (other > best) best = other, which = k;
    }
    y[i] = best > 0.0f ? best * dropout.factor(i) : 0.0f;
    chosen[i] = static_cast<float>(which);
  }
};
NN_INLINE float let_through(float dy, float y, float scale) { return y > 0.0f ? dy * scale : 0.0f; }
struct PoolBackward {
  Squares squares;
  const float *dy, *y;
  float scale;
  const float* chosen;
  float* dx;
  __device__ void operator()(std::size_t i) const {
    float* const four = dx + squares.first(i);
    const float g = let_through(dy[i], y[i], scale);
    for (unsigned k = 0; k < 4; ++k) four[squares.of(k)] = chosen[i] == static_cast<float>(k) ? g : 0.0f;
  }
};
struct PoolBackwardSums {
  std::size_t images, group, outputs, channels;
  const float *dy, *y;
  float scale;
  float* sums;
  std::size_t apart;
  __device__ void operator()(std::size_t i) const {
    const std::size_t first = i / channels * group, last = first + group < images ? first + group : images;
    float sum = 0;
    for (std::size_t e = first * outputs + i % channels; e < last * outputs; e += channels) sum = sum + let_through(dy[e], y[e], scale);
    sums[i / channels * apart + i % channels] = sum;
  }
};

}  // namespace

void Convolution::forward(DeviceEngine& engine, std::size_t images, const float* x, const float* weight, const float* bias,
                          float* y) const {
  const std::size_t pixels = images * pixels_.size(), taps = taps_.size();
  fill_rows(engine, pixels, out_, bias, y);
  product(engine, {pixels, out_, taps}, SeenPixels{x, height_ * width_ * in_, width_, out_width(), pixels_.size(), window_, in_, 0},
          Many<const float>{weight, out_, 1}, {y, out_, 1}, Into::sum);
}

void Convolution::backward_weight(DeviceEngine& engine, std::size_t images, std::size_t group, const float* dy, const float* x, float* sums,
                                  std::size_t apart) const {
  const std::size_t image = height_ * width_ * in_, full = images / group;
  const auto groups = [&](std::size_t first, std::size_t count, std::size_t each) {
    const std::size_t at = first * group;
    product(engine, {taps_.size(), out_, each * pixels_.size()},
            SeenTaps{{x + at * image, image, width_, out_width(), pixels_.size(), window_, in_, group * image}},
            Many<const float>{dy + at * outputs(), out_, 1, group * outputs()}, {sums + first * apart, out_, 1, apart}, Into::fresh, count);
  };
  if (full > 0) groups(0, full, group);
  if (images % group > 0) groups(full, 1, images % group);
}

void Convolution::backward_bias(DeviceEngine& engine, std::size_t images, std::size_t group, const float* dy, float* sums,
                                std::size_t apart) const {
  each(engine, (images + group - 1) / group * out_, SumsOfPixels{images, group, outputs(), out_, dy, sums, apart});
}

void Convolution::backward_input(DeviceEngine& engine, std::size_t images, const float* dy, const float* weight, float* dx) const {
  product(engine, {images * height_ * width_, in_, back_taps_.size()},
          SeenGradient{dy, width_, height_ * width_, out_width(), out_height(), window_, out_},
          TurnedWeights{weight, window_ * window_, in_, out_}, {dx, in_, 1});
}

void MaxPool::forward(DeviceEngine& engine, std::size_t images, const float* x, const Dropout& dropout, float* y, float* chosen) const {
  each(engine, images * outputs(), PoolForward{{height, width, channels}, dropout, x, y, chosen});
}
void MaxPool::backward(DeviceEngine& engine, std::size_t images, std::size_t group, const float* dy, const float* y, float scale,
                       const float* chosen, float* dx, float* sums, std::size_t apart) const {
  each(engine, images * outputs(), PoolBackward{{height, width, channels}, dy, y, scale, chosen, dx});
  each(engine, (images + group - 1) / group * channels, PoolBackwardSums{images, group, outputs(), channels, dy, y, scale, sums, apart});
}

}  // namespace nn
