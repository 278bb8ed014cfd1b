#include "samples/mnist/windows.hpp"
#include "samples/nn/layers.hpp"

namespace mnist {
namespace {

// Where the sums of one group lie in `sums_`.
constexpr std::size_t sums_weight1 = 0, sums_bias1 = sums_weight1 + window * window * channels1, sums_weight2 = sums_bias1 + channels1,
                      sums_bias2 = sums_weight2 + window * window * channels1 * channels2, sums_of_group = sums_bias2 + channels2;

std::size_t groups_of(std::size_t batch) { return (batch + images_per_task - 1) / images_per_task; }

}  // namespace

Windows<nn::DeviceEngine>::Windows(nn::DeviceEngine& engine, std::size_t batch_max)
    : engine_{engine},
      conv1_{height, width, 1, channels1, window},
      conv2_{side1, side1, channels1, channels2, window},
      pool_{pooled_side, pooled_side, channels2},
      relu1_{engine.array(batch_max * inner1)},
      chosen_{engine.array(batch_max * pooled)},
      conv2_out_{engine.array(batch_max * conv2_.outputs())},
      dconv1_{engine.array(batch_max * inner1)},
      sums_{engine.array(groups_of(batch_max) * sums_of_group)} {}

void Windows<nn::DeviceEngine>::forward(std::size_t batch, const float* images, const WindowTensors<const float>& w,
                                        const nn::Dropout& dropout, float* pooled_out) {
  conv1_.forward(engine_, batch, images, w.weight1, w.bias1, relu1_.data());
  nn::relu_forward(engine_, batch * inner1, relu1_.data(), relu1_.data());
  conv2_.forward(engine_, batch, relu1_.data(), w.weight2, w.bias2, conv2_out_.data());
  pool_.forward(engine_, batch, conv2_out_.data(), dropout, pooled_out, chosen_.data());
}

void Windows<nn::DeviceEngine>::backward(std::size_t batch, const float* images, const WindowTensors<const float>& w,
                                         const float* pooled_out, const float* dpooled, const WindowTensors<float>& gradients) {
  constexpr float kept = 256.0f / (256 - dropped_of_pooled);
  float *const dconv2 = conv2_out_.data(), *const sums = sums_.data();
  pool_.backward(engine_, batch, images_per_task, dpooled, pooled_out, kept, chosen_.data(), dconv2, sums + sums_bias2, sums_of_group);
  conv2_.backward_weight(engine_, batch, images_per_task, dconv2, relu1_.data(), sums + sums_weight2, sums_of_group);
  conv2_.backward_input(engine_, batch, dconv2, w.weight2, dconv1_.data());
  nn::relu_backward(engine_, batch * inner1, dconv1_.data(), relu1_.data(), 1.0f, dconv1_.data());
  conv1_.backward_bias(engine_, batch, images_per_task, dconv1_.data(), sums + sums_bias1, sums_of_group);
  conv1_.backward_weight(engine_, batch, images_per_task, dconv1_.data(), images, sums + sums_weight1, sums_of_group);
  const auto gather = [&](float* gradient, std::size_t size, std::size_t at) {
    nn::add_rows(engine_, groups_of(batch), size, sums + at, sums_of_group, gradient);
  };
  gather(gradients.weight1, conv1_.weights(), sums_weight1);
  gather(gradients.bias1, channels1, sums_bias1);
  gather(gradients.weight2, conv2_.weights(), sums_weight2);
  gather(gradients.bias2, channels2, sums_bias2);
}

}  // namespace mnist
