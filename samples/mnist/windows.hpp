#pragma once
/// \file What the network does with windows over an image: conv 3x3 to 32, relu, conv 3x3 to 64, relu, maximum over 2x2, dropout; forward and backward, on the
/// host or on a device, with the same bits.
///
/// What an image adds to a gradient is added up over `images_per_task` images first, and those sums in their order. Which images are together follows from the
/// batch alone. On the host such images are one task's, which takes one of them through both convolutions while it is in its cache; a device takes all images
/// through one layer after the other.

#include <cstddef>
#include <vector>

#include "samples/mnist/digits.hpp"
#include "samples/nn/conv.hpp"
#include "samples/nn/device_engine.hpp"

namespace mnist {

constexpr std::size_t channels1 = 32, channels2 = 64, window = 3, images_per_task = 4;
constexpr std::size_t side1 = height - window + 1, side2 = side1 - window + 1, pooled_side = side2 / 2;
constexpr std::size_t inner1 = side1 * side1 * channels1, pooled = pooled_side * pooled_side * channels2;
constexpr std::uint32_t dropped_of_pooled = 64;  // of 256
static_assert(height == width && side2 % 2 == 0 && channels2 % 16 == 0);

/// Both convolutions' weights, or their gradients.
template <class T>
struct WindowTensors {
  T *weight1, *bias1, *weight2, *bias2;
};

/// Of one batch of images at a time, image after image. Allocates once, for `batch_max` images. `E`: nn::Engine or nn::DeviceEngine.
template <class E>
class Windows;

template <>
class Windows<nn::Engine> {
 public:
  Windows(nn::Engine& engine, std::size_t batch_max);
  /// `pooled` gets pooled elements per image.
  void forward(std::size_t batch, const float* images, const WindowTensors<const float>& weights, const nn::Dropout& dropout,
               float* pooled);
  /// After `forward` of the same images; adds to the gradients.
  void backward(std::size_t batch, const float* images, const WindowTensors<const float>& weights, const float* pooled,
                const float* dpooled, const WindowTensors<float>& gradients);

 private:
  void pool(const float* y, std::size_t image, const nn::Dropout& dropout, float* pooled);
  void unpool(std::size_t image, const float* pooled, const float* dpooled, float* rimmed, float* dbias) const;
  struct Worker {  // what one image needs at a time
    std::vector<float> conv2, rimmed, dconv1;
  };
  struct Partial {  // what one task's images add to the gradients
    std::vector<float> weight1, bias1, weight2, bias2;
  };
  nn::Engine& engine_;
  nn::Convolution conv1_, conv2_;
  std::vector<Worker> workers_;
  std::vector<Partial> partials_;
  std::vector<float> turned_;          // weight2, for the way back
  std::vector<float> relu1_, chosen_;  // `chosen`: which of four pixels went into `pooled`
};

template <>
class Windows<nn::DeviceEngine> {
 public:
  Windows(nn::DeviceEngine& engine, std::size_t batch_max);
  void forward(std::size_t batch, const float* images, const WindowTensors<const float>& weights, const nn::Dropout& dropout,
               float* pooled);
  void backward(std::size_t batch, const float* images, const WindowTensors<const float>& weights, const float* pooled,
                const float* dpooled, const WindowTensors<float>& gradients);

 private:
  nn::DeviceEngine& engine_;
  nn::Convolution conv1_, conv2_;
  nn::MaxPool pool_;
  nn::DeviceArray relu1_, chosen_, conv2_out_, dconv1_;  // conv2_out_: on the way back its gradient
  nn::DeviceArray sums_;  // what each group of images adds to the gradients: weight 1, bias 1, weight 2, bias 2
};

}  // namespace mnist
