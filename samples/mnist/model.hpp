#pragma once
/// \file The network: two convolutions and a maximum over 2x2 (windows.hpp), dropout 1/4, dense to 128, dropout 1/2, dense
/// to 10; relu after each layer but the last, softmax and cross entropy at the end. On the host or on a device.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <elrun/job.hpp>
#include "samples/mnist/digits.hpp"
#include "samples/mnist/windows.hpp"

namespace mnist {

/// More fields than 15: each tensor and each activation is one. `E`: nn::Engine or nn::DeviceEngine. The arithmetic and its bits are the same.
template <class E>
class Model {
 public:
  /// Declares the units. `batch_max` images at a time at most.
  Model(elrun::Job& job, E& engine, std::size_t batch_max);
  void initialise(const elrun::RandomStream& random);

  /// Returns the mean loss over the images, and keeps what `backward` needs. `dropout` are the numbers of this slot.
  typename E::Loss forward(std::span<const Digit> digits, const elrun::RandomStream& dropout);
  /// After `forward`: adds to the gradients.
  void backward();

  /// All of them, in the order of the state hash.
  [[nodiscard]] std::vector<elrun::Tensor<float>> tensors() const {
    return {weight1_, bias1_, weight2_, bias2_, weight3_, bias3_, weight4_, bias4_};
  }

  struct Score {
    typename E::Loss loss;
    std::uint64_t correct;
  };
  /// Without dropout; nothing is kept.
  Score test(std::span<const Digit> digits);

 private:
  struct Dropouts {  // after the windows, and after the dense layer
    nn::Dropout pooled, hidden;
  };
  void predict(std::span<const Digit> digits, const Dropouts& dropouts);
  typename E::Loss loss();
  [[nodiscard]] WindowTensors<const float> window_weights() const {
    return {weight1_.data(), bias1_.data(), weight2_.data(), bias2_.data()};
  }

  E& engine_;
  elrun::Unit windows_unit_;
  elrun::Tensor<float> weight1_, bias1_, weight2_, bias2_;
  elrun::Unit dense_;
  elrun::Tensor<float> weight3_, bias3_;
  elrun::Unit head_;
  elrun::Tensor<float> weight4_, bias4_;

  std::size_t batch_ = 0;  // of the last forward pass
  Windows<E> windows_;
  std::vector<float> packed_;  // the images, one after the other, on the host
  std::vector<std::int32_t> labels_;
  typename E::Ids targets_;
  // Image after image.
  typename E::Array images_, pooled_, hidden_, logits_, losses_, dpooled_, dhidden_;
};

}  // namespace mnist
