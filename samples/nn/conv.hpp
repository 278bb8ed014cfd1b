#pragma once
/// \file A convolution without a rim ("valid"), stride 1, as products of an image seen through a window. On the host one image at a
/// time, on the calling thread: a task goes through several layers while the image is in its cache. On a device all images of a batch at once, with the
/// same bits.
///
/// Images are [height][width][channels], weights [window][window][in][out]. Element chains of a product run over the
/// window row by row, then over channels; sums over pixels run row by row.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "samples/nn/dropout.hpp"
#include "samples/nn/engine.hpp"

namespace nn {

class DeviceEngine;  // device_engine.hpp

/// What lies around a gradient of an output in memory.
enum class Rim {
  none,   ///< Nothing: [out_height][out_width][out].
  zeros,  ///< window - 1 pixels of zeros on each side, which is what the way back to the input wants.
};

class Convolution {
 public:
  Convolution(std::size_t height, std::size_t width, std::size_t in, std::size_t out, std::size_t window);

  [[nodiscard]] std::size_t out_height() const { return height_ - window_ + 1; }
  [[nodiscard]] std::size_t out_width() const { return width_ - window_ + 1; }
  [[nodiscard]] std::size_t outputs() const { return out_height() * out_width() * out_; }
  [[nodiscard]] std::size_t weights() const { return window_ * window_ * in_ * out_; }
  /// Of a gradient of the output with a rim of zeros, and where pixel (row, column) begins in it.
  [[nodiscard]] std::size_t rimmed_size() const { return (height_ + window_ - 1) * rimmed_width() * out_; }
  [[nodiscard]] std::size_t rimmed_at(std::size_t row, std::size_t column) const {
    return ((row + window_ - 1) * rimmed_width() + column + window_ - 1) * out_;
  }

  /// y = x * weight + bias.
  void forward(Engine&, std::size_t worker, const float* x, const float* weight, const float* bias, float* y) const;
  /// dweight (+)= sum over pixels of dy and what the window saw.
  void backward_weight(Engine&, std::size_t worker, const float* dy, Rim rim, const float* x, float* dweight, Into into) const;
  /// What `backward_input` multiplies with: the weights, turned around. `turned` has weights() elements.
  void turn(const float* weight, float* turned) const;
  /// dx from a gradient with a rim of zeros.
  void backward_input(Engine&, std::size_t worker, const float* rimmed_dy, const float* turned, float* dx) const;

  // The same on a device, image after image in memory. Gradients have no rim there.
  void forward(DeviceEngine&, std::size_t images, const float* x, const float* weight, const float* bias, float* y) const;
  /// Overwrites sums[g], `apart` elements apart: the sum over the `group` images from g * group on (the last group may be smaller).
  void backward_weight(DeviceEngine&, std::size_t images, std::size_t group, const float* dy, const float* x, float* sums,
                       std::size_t apart) const;
  /// Likewise of dy over the pixels.
  void backward_bias(DeviceEngine&, std::size_t images, std::size_t group, const float* dy, float* sums, std::size_t apart) const;
  void backward_input(DeviceEngine&, std::size_t images, const float* dy, const float* weight, float* dx) const;

 private:
  [[nodiscard]] std::size_t rimmed_width() const { return width_ + window_ - 1; }
  std::size_t height_, width_, in_, out_, window_;
  std::vector<std::uint32_t> pixels_, taps_;             // the image through the window: rows and columns
  std::vector<std::uint32_t> flat_, rimmed_, channels_;  // dy's pixels, without and with a rim, and its channels
  std::vector<std::uint32_t> back_pixels_, back_taps_;   // dy through the window, for dx
};

/// The maximum over squares of 2 x 2 pixels, relu and dropout after it, of images [2 * height][2 * width][channels] on a device. (relu and the maximum
/// change places without changing a bit.) The host has it in Kernels, for one pixel at a time.
struct MaxPool {
  std::size_t height, width, channels;  ///< Of what is left of an image.
  [[nodiscard]] std::size_t outputs() const { return height * width * channels; }
  /// `chosen`: which of the four went into y, 0 to 3, the first of equal ones.
  void forward(DeviceEngine&, std::size_t images, const float* x, const Dropout& dropout, float* y, float* chosen) const;
  /// dx: dy * scale where y > 0, at the pixel that was chosen, and 0 elsewhere. Overwrites sums[g], `apart` elements apart, with the sum of that over the pixels
  /// of the `group` images from g * group on: the gradient of a bias before it.
  void backward(DeviceEngine&, std::size_t images, std::size_t group, const float* dy, const float* y, float scale, const float* chosen,
                float* dx, float* sums, std::size_t apart) const;
};

}  // namespace nn
