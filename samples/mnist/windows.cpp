#include "samples/mnist/windows.hpp"

#include <algorithm>
#include <span>

#include "samples/nn/layers.hpp"

namespace mnist {
namespace {
constexpr std::size_t elements_per_task = 4096;
}

Windows<nn::Engine>::Windows(nn::Engine& engine, std::size_t batch_max)
    : engine_{engine},
      conv1_{height, width, 1, channels1, window},
      conv2_{side1, side1, channels1, channels2, window},
      workers_(engine.threads(),
               {std::vector<float>(conv2_.outputs()), std::vector<float>(conv2_.rimmed_size()), std::vector<float>(inner1)}),
      partials_((batch_max + images_per_task - 1) / images_per_task, {std::vector<float>(conv1_.weights()), std::vector<float>(channels1),
                                                                      std::vector<float>(conv2_.weights()), std::vector<float>(channels2)}),
      turned_(conv2_.weights()),
      relu1_(batch_max * inner1),
      chosen_(batch_max * pooled) {}

// relu and the maximum over 2 x 2 pixels change places without changing a bit.
void Windows<nn::Engine>::pool(const float* y, std::size_t image, const nn::Dropout& dropout, float* pooled_out) {
  float factors[channels2];
  std::fill_n(factors, channels2, 1.0f);
  for (std::size_t at = 0; at < pooled_side * pooled_side; ++at) {
    const std::size_t row = at / pooled_side * 2, column = at % pooled_side * 2;
    const float* const first = y + (row * side2 + column) * channels2;
    const float* const four[] = {first, first + channels2, first + side2 * channels2, first + (side2 + 1) * channels2};
    const std::size_t begin = image * pooled + at * channels2;
    if (dropout.dropped > 0)
      for (std::size_t c = 0; c < channels2; c += 16) dropout.factors((begin + c) / 16, factors + c);
    engine_.kernels().pool_forward(four, factors, channels2, pooled_out + begin, chosen_.data() + begin);
  }
}

void Windows<nn::Engine>::forward(std::size_t batch, const float* images, const WindowTensors<const float>& w, const nn::Dropout& dropout,
                                  float* pooled_out) {
  engine_.parallel_for((batch + images_per_task - 1) / images_per_task, [&](std::size_t task, std::size_t worker) {
    for (std::size_t i = task * images_per_task; i < std::min(batch, (task + 1) * images_per_task); ++i) {
      float* const relu = relu1_.data() + i * inner1;
      conv1_.forward(engine_, worker, images + i * pixels, w.weight1, w.bias1, relu);
      engine_.kernels().relu_forward(relu, inner1, relu);
      float* const y = workers_[worker].conv2.data();
      conv2_.forward(engine_, worker, relu, w.weight2, w.bias2, y);
      pool(y, i, dropout, pooled_out);
    }
  });
}

// The gradient of conv 2's output, with a rim of zeros that stays: each pooled one goes to the pixel it came from.
void Windows<nn::Engine>::unpool(std::size_t image, const float* pooled_out, const float* dpooled, float* rimmed, float* dbias) const {
  constexpr float kept = 256.0f / (256 - dropped_of_pooled);
  for (std::size_t at = 0; at < pooled_side * pooled_side; ++at) {
    const std::size_t row = at / pooled_side * 2, column = at % pooled_side * 2, begin = image * pooled + at * channels2;
    float* const four[] = {rimmed + conv2_.rimmed_at(row, column), rimmed + conv2_.rimmed_at(row, column + 1),
                           rimmed + conv2_.rimmed_at(row + 1, column), rimmed + conv2_.rimmed_at(row + 1, column + 1)};
    engine_.kernels().pool_backward(dpooled + begin, pooled_out + begin, kept, chosen_.data() + begin, channels2, four, dbias);
  }
}

void Windows<nn::Engine>::backward(std::size_t batch, const float* images, const WindowTensors<const float>& w, const float* pooled_out,
                                   const float* dpooled, const WindowTensors<float>& gradients) {
  const std::size_t tasks = (batch + images_per_task - 1) / images_per_task;
  conv2_.turn(w.weight2, turned_.data());
  engine_.parallel_for(tasks, [&](std::size_t task, std::size_t worker) {
    Worker& mine = workers_[worker];
    Partial& sum = partials_[task];
    std::ranges::fill(sum.bias1, 0.0f);
    std::ranges::fill(sum.bias2, 0.0f);
    for (std::size_t i = task * images_per_task; i < std::min(batch, (task + 1) * images_per_task); ++i) {
      const nn::Into into = i == task * images_per_task ? nn::Into::fresh : nn::Into::sum;
      const float* const relu = relu1_.data() + i * inner1;
      unpool(i, pooled_out, dpooled, mine.rimmed.data(), sum.bias2.data());
      conv2_.backward_weight(engine_, worker, mine.rimmed.data(), nn::Rim::zeros, relu, sum.weight2.data(), into);
      float* const dx = mine.dconv1.data();
      conv2_.backward_input(engine_, worker, mine.rimmed.data(), turned_.data(), dx);
      engine_.kernels().relu_backward(dx, relu, 1.0f, inner1, dx);
      for (std::size_t pixel = 0; pixel < inner1; pixel += channels1)
        engine_.kernels().add(sum.bias1.data(), dx + pixel, channels1, sum.bias1.data());
      conv1_.backward_weight(engine_, worker, dx, nn::Rim::none, images + i * pixels, sum.weight1.data(), into);
    }
  });
  const auto gather = [&](float* gradient, std::size_t size, std::vector<float> Partial::*part) {
    engine_.parallel_chunks(size, elements_per_task, [&](std::size_t first, std::size_t last) {
      for (std::size_t t = 0; t < tasks; ++t)
        engine_.kernels().add(gradient + first, (partials_[t].*part).data() + first, last - first, gradient + first);
    });
  };
  gather(gradients.weight1, conv1_.weights(), &Partial::weight1);
  gather(gradients.bias1, channels1, &Partial::bias1);
  gather(gradients.weight2, conv2_.weights(), &Partial::weight2);
  gather(gradients.bias2, channels2, &Partial::bias2);
}

}  // namespace mnist
