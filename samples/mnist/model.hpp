#pragma once
/// \file The network: conv 3x3 to 32, conv 3x3 to 64, maximum over 2x2, dropout 1/4, dense to 128, dropout 1/2, dense
/// to 10; relu after each layer but the last, softmax and cross entropy at the end.
///
/// A task takes a few images through both convolutions, forward or backward, while they are in its cache. Which images
/// are one task's follows from the batch alone, and what tasks add up is added in their order.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <elrun/job.hpp>
#include "samples/mnist/digits.hpp"
#include "samples/nn/conv.hpp"

namespace mnist {

class Model {
 public:
  /// Declares the units. `batch_max` images at a time at most.
  Model(elrun::Job& job, nn::Engine& engine, std::size_t batch_max);
  void initialise(const elrun::RandomStream& random);

  /// Returns the mean loss over the images, and keeps what `backward` needs. `dropout` are the numbers of this slot.
  float forward(std::span<const Digit> digits, const elrun::RandomStream& dropout);
  /// After `forward` of the same images: adds to the gradients.
  void backward(std::span<const Digit> digits);

  /// All of them, in the order of the state hash.
  [[nodiscard]] std::vector<elrun::Tensor<float>> tensors() const {
    return {weight1_, bias1_, weight2_, bias2_, weight3_, bias3_, weight4_, bias4_};
  }

  struct Score {
    float loss;
    std::uint64_t correct;
  };
  /// Without dropout; nothing is kept.
  Score test(std::span<const Digit> digits);

 private:
  enum class Mode { train, test };
  void predict(std::span<const Digit> digits, Mode mode, const elrun::RandomStream& dropout);
  float loss(std::span<const Digit> digits);
  void pool(const float* y, std::size_t image, Mode mode, const elrun::RandomStream& dropout);
  void unpool(std::size_t image, float* rimmed, float* dbias) const;
  void backward_images(std::span<const Digit> digits);

  struct Worker {  // what one image needs at a time
    std::vector<float> conv2, rimmed, dconv1;
  };
  struct Partial {  // what one task's images add to the gradients
    std::vector<float> weight1, bias1, weight2, bias2;
  };

  nn::Engine& engine_;
  nn::Convolution conv1_, conv2_;
  elrun::Unit windows_;
  elrun::Tensor<float> weight1_, bias1_, weight2_, bias2_;
  elrun::Unit dense_;
  elrun::Tensor<float> weight3_, bias3_;
  elrun::Unit head_;
  elrun::Tensor<float> weight4_, bias4_;

  std::vector<Worker> workers_;
  std::vector<Partial> partials_;
  std::vector<float> turned_;  // weight2, for the way back
  // Image after image; `chosen` is which of four pixels went into `pooled`.
  std::vector<float> relu1_, pooled_, chosen_, hidden_, logits_, losses_, dpooled_, dhidden_;
  std::vector<std::int32_t> labels_;
};

}  // namespace mnist
