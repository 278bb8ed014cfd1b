#include "samples/mnist/model.hpp"

#include <algorithm>
#include <cmath>

#include "samples/nn/layers.hpp"

namespace mnist {
namespace {

constexpr std::size_t channels1 = 32, channels2 = 64, window = 3, hidden = 128;
constexpr std::size_t side1 = height - window + 1, side2 = side1 - window + 1, pooled_side = side2 / 2;
constexpr std::size_t inner1 = side1 * side1 * channels1, pooled = pooled_side * pooled_side * channels2;
static_assert(height == width && side2 % 2 == 0 && channels2 % 16 == 0 && hidden % 16 == 0);

constexpr std::size_t images_per_task = 4, elements_per_task = 4096;
constexpr std::uint32_t dropout_pooled = 1, dropout_hidden = 2;  // operations of a slot's random numbers
constexpr elrun::TensorOptions no_decay{.decay = false};

/// Dropout of elements 16 * block .. 16 * block + 15: what they are multiplied with, 0 for `dropped` of 256. Each has a
/// byte of its own: a quarter and a half need no more.
void keep_factors(const elrun::RandomStream& random, std::uint64_t block, std::uint32_t dropped, float* out) {
  const float kept = 256.0f / static_cast<float>(256 - dropped);
  const elrun::Philox4x32::Counter bits = random.four_bits(block);
  for (std::size_t i = 0; i < 16; ++i) out[i] = (bits[i / 4] >> (i % 4 * 8) & 255) >= dropped ? kept : 0.0f;
}

}  // namespace

Model::Model(elrun::Job& job, nn::Engine& engine, std::size_t batch_max)
    : engine_{engine},
      conv1_{height, width, 1, channels1, window},
      conv2_{side1, side1, channels1, channels2, window},
      windows_{job.unit("windows")},
      weight1_{windows_.tensor<float>("conv1.weight", {window, window, 1, channels1})},
      bias1_{windows_.tensor<float>("conv1.bias", {channels1}, no_decay)},
      weight2_{windows_.tensor<float>("conv2.weight", {window, window, channels1, channels2})},
      bias2_{windows_.tensor<float>("conv2.bias", {channels2}, no_decay)},
      dense_{job.unit("dense")},
      weight3_{dense_.tensor<float>("weight", {hidden, pooled})},
      bias3_{dense_.tensor<float>("bias", {hidden}, no_decay)},
      head_{job.unit("head")},
      weight4_{head_.tensor<float>("weight", {classes, hidden})},
      bias4_{head_.tensor<float>("bias", {classes}, no_decay)},
      workers_(engine.threads(),
               {std::vector<float>(conv2_.outputs()), std::vector<float>(conv2_.rimmed_size()), std::vector<float>(inner1)}),
      partials_((batch_max + images_per_task - 1) / images_per_task, {std::vector<float>(conv1_.weights()), std::vector<float>(channels1),
                                                                      std::vector<float>(conv2_.weights()), std::vector<float>(channels2)}),
      turned_(conv2_.weights()),
      relu1_(batch_max * inner1),
      pooled_(batch_max * pooled),
      chosen_(batch_max * pooled),
      hidden_(batch_max * hidden),
      logits_(batch_max * classes),
      losses_(batch_max),
      dpooled_(batch_max * pooled),
      dhidden_(batch_max * hidden),
      labels_(batch_max) {}

void Model::initialise(const elrun::RandomStream& random) {
  const auto windows = windows_.use(), dense = dense_.use(), head = head_.use();
  std::uint32_t operation = 0;
  const auto normal = [&](const elrun::Tensor<float>& tensor, std::size_t inputs) {
    const elrun::RandomStream numbers = random.operation(operation++);
    const float deviation = std::sqrt(2.0f / static_cast<float>(inputs));  // keeps the size of what relu lets through
    for (std::uint64_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = deviation * numbers.normal(i);
  };
  normal(weight1_, window * window);
  normal(weight2_, window * window * channels1);
  normal(weight3_, pooled);
  normal(weight4_, hidden);
  for (const auto& bias : {bias1_, bias2_, bias3_, bias4_}) std::ranges::fill(bias.span(), 0.0f);
}

// relu and the maximum over 2 x 2 pixels change places without changing a bit.
void Model::pool(const float* y, std::size_t image, Mode mode, const elrun::RandomStream& dropout) {
  const elrun::RandomStream random = dropout.operation(dropout_pooled);
  float factors[channels2];
  std::fill_n(factors, channels2, 1.0f);
  for (std::size_t at = 0; at < pooled_side * pooled_side; ++at) {
    const std::size_t row = at / pooled_side * 2, column = at % pooled_side * 2;
    const float* const first = y + (row * side2 + column) * channels2;
    const float* const four[] = {first, first + channels2, first + side2 * channels2, first + (side2 + 1) * channels2};
    const std::size_t begin = image * pooled + at * channels2;
    if (mode == Mode::train)
      for (std::size_t c = 0; c < channels2; c += 16) keep_factors(random, (begin + c) / 16, 64, factors + c);
    engine_.kernels().pool_forward(four, factors, channels2, pooled_.data() + begin, chosen_.data() + begin);
  }
}

void Model::predict(std::span<const Digit> digits, Mode mode, const elrun::RandomStream& dropout) {
  const std::size_t batch = digits.size();
  {
    const auto use = windows_.use();
    engine_.parallel_for((batch + images_per_task - 1) / images_per_task, [&](std::size_t task, std::size_t worker) {
      for (std::size_t i = task * images_per_task; i < std::min(batch, (task + 1) * images_per_task); ++i) {
        float* const relu = relu1_.data() + i * inner1;
        conv1_.forward(engine_, worker, digits[i].image, weight1_.data(), bias1_.data(), relu);
        engine_.kernels().relu_forward(relu, inner1, relu);
        float* const y = workers_[worker].conv2.data();
        conv2_.forward(engine_, worker, relu, weight2_.data(), bias2_.data(), y);
        pool(y, i, mode, dropout);
      }
    });
  }
  const auto dense = dense_.use(), head = head_.use();
  for (std::size_t i = 0; i < batch; ++i) std::copy_n(bias3_.data(), hidden, hidden_.data() + i * hidden);
  engine_.product({batch, hidden, pooled}, {pooled_.data(), pooled}, nn::View{weight3_.data(), pooled}.transposed(),
                  {hidden_.data(), hidden}, nn::Into::sum);
  const elrun::RandomStream random = dropout.operation(dropout_hidden);
  engine_.kernels().relu_forward(hidden_.data(), batch * hidden, hidden_.data());
  for (std::size_t e = 0; mode == Mode::train && e < batch * hidden; e += 16) {
    float factors[16];
    keep_factors(random, e / 16, 128, factors);
    for (std::size_t k = 0; k < 16; ++k) hidden_[e + k] *= factors[k];
  }
  for (std::size_t i = 0; i < batch; ++i) std::copy_n(bias4_.data(), classes, logits_.data() + i * classes);
  engine_.product({batch, classes, hidden}, {hidden_.data(), hidden}, nn::View{weight4_.data(), hidden}.transposed(),
                  {logits_.data(), classes}, nn::Into::sum);
}

float Model::loss(std::span<const Digit> digits) {
  for (std::size_t i = 0; i < digits.size(); ++i) labels_[i] = digits[i].label;
  return nn::cross_entropy(engine_, digits.size(), classes, labels_.data(), logits_.data(), losses_.data());
}

float Model::forward(std::span<const Digit> digits, const elrun::RandomStream& dropout) {
  predict(digits, Mode::train, dropout);
  return loss(digits);
}

Model::Score Model::test(std::span<const Digit> digits) {
  predict(digits, Mode::test, {});
  std::uint64_t correct = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const float* const row = logits_.data() + i * classes;
    correct += std::max_element(row, row + classes) - row == digits[i].label;
  }
  return {loss(digits), correct};
}

// The gradient of conv 2's output, with a rim of zeros that stays: each pooled one goes to the pixel it came from.
void Model::unpool(std::size_t image, float* rimmed, float* dbias) const {
  for (std::size_t at = 0; at < pooled_side * pooled_side; ++at) {
    const std::size_t row = at / pooled_side * 2, column = at % pooled_side * 2, begin = image * pooled + at * channels2;
    float* const four[] = {rimmed + conv2_.rimmed_at(row, column), rimmed + conv2_.rimmed_at(row, column + 1),
                           rimmed + conv2_.rimmed_at(row + 1, column), rimmed + conv2_.rimmed_at(row + 1, column + 1)};
    engine_.kernels().pool_backward(dpooled_.data() + begin, pooled_.data() + begin, 4.0f / 3, chosen_.data() + begin, channels2, four,
                                    dbias);
  }
}

void Model::backward_images(std::span<const Digit> digits) {
  const std::size_t batch = digits.size(), tasks = (batch + images_per_task - 1) / images_per_task;
  const auto use = windows_.use_grad();
  conv2_.turn(weight2_.data(), turned_.data());
  engine_.parallel_for(tasks, [&](std::size_t task, std::size_t worker) {
    Worker& mine = workers_[worker];
    Partial& sum = partials_[task];
    std::ranges::fill(sum.bias1, 0.0f);
    std::ranges::fill(sum.bias2, 0.0f);
    for (std::size_t i = task * images_per_task; i < std::min(batch, (task + 1) * images_per_task); ++i) {
      const nn::Into into = i == task * images_per_task ? nn::Into::fresh : nn::Into::sum;
      const float* const relu = relu1_.data() + i * inner1;
      unpool(i, mine.rimmed.data(), sum.bias2.data());
      conv2_.backward_weight(engine_, worker, mine.rimmed.data(), nn::Rim::zeros, relu, sum.weight2.data(), into);
      float* const dx = mine.dconv1.data();
      conv2_.backward_input(engine_, worker, mine.rimmed.data(), turned_.data(), dx);
      engine_.kernels().relu_backward(dx, relu, 1.0f, inner1, dx);
      for (std::size_t pixel = 0; pixel < inner1; pixel += channels1)
        engine_.kernels().add(sum.bias1.data(), dx + pixel, channels1, sum.bias1.data());
      conv1_.backward_weight(engine_, worker, dx, nn::Rim::none, digits[i].image, sum.weight1.data(), into);
    }
  });
  const auto gather = [&](const elrun::Tensor<float>& tensor, std::vector<float> Partial::*part) {
    engine_.parallel_chunks(tensor.size(), elements_per_task, [&](std::size_t first, std::size_t last) {
      for (std::size_t t = 0; t < tasks; ++t)
        engine_.kernels().add(tensor.grad() + first, (partials_[t].*part).data() + first, last - first, tensor.grad() + first);
    });
  };
  gather(weight1_, &Partial::weight1);
  gather(bias1_, &Partial::bias1);
  gather(weight2_, &Partial::weight2);
  gather(bias2_, &Partial::bias2);
}

void Model::backward(std::span<const Digit> digits) {
  const std::size_t batch = digits.size();
  const auto sum_rows = [&](const float* rows, std::size_t n, float* out) {
    for (std::size_t i = 0; i < batch; ++i) engine_.kernels().add(out, rows + i * n, n, out);
  };
  {
    const auto use = head_.use_grad();
    const nn::Linear head{hidden, classes};
    head.backward_weight(engine_, batch, logits_.data(), hidden_.data(), weight4_.grad());
    sum_rows(logits_.data(), classes, bias4_.grad());
    head.backward_input(engine_, batch, logits_.data(), weight4_.data(), dhidden_.data());
  }
  engine_.kernels().relu_backward(dhidden_.data(), hidden_.data(), 2.0f, batch * hidden, dhidden_.data());  // and dropout
  {
    const auto use = dense_.use_grad();
    const nn::Linear dense{pooled, hidden};
    dense.backward_weight(engine_, batch, dhidden_.data(), pooled_.data(), weight3_.grad());
    sum_rows(dhidden_.data(), hidden, bias3_.grad());
    dense.backward_input(engine_, batch, dhidden_.data(), weight3_.data(), dpooled_.data());
  }
  backward_images(digits);
}

}  // namespace mnist
