#include "samples/mnist/model.hpp"

#include <algorithm>
#include <cmath>

#include "samples/nn/layers.hpp"

namespace mnist {
namespace {

constexpr std::size_t hidden = 128;
static_assert(hidden % 16 == 0);

constexpr std::uint32_t dropout_pooled = 1, dropout_hidden = 2;  // operations of a slot's random numbers
constexpr elrun::TensorOptions no_decay{.decay = false};

}  // namespace

template <class E>
Model<E>::Model(elrun::Job& job, E& engine, std::size_t batch_max)
    : engine_{engine},
      windows_unit_{job.unit("windows")},
      weight1_{windows_unit_.tensor<float>("conv1.weight", {window, window, 1, channels1})},
      bias1_{windows_unit_.tensor<float>("conv1.bias", {channels1}, no_decay)},
      weight2_{windows_unit_.tensor<float>("conv2.weight", {window, window, channels1, channels2})},
      bias2_{windows_unit_.tensor<float>("conv2.bias", {channels2}, no_decay)},
      dense_{job.unit("dense")},
      weight3_{dense_.tensor<float>("weight", {hidden, pooled})},
      bias3_{dense_.tensor<float>("bias", {hidden}, no_decay)},
      head_{job.unit("head")},
      weight4_{head_.tensor<float>("weight", {classes, hidden})},
      bias4_{head_.tensor<float>("bias", {classes}, no_decay)},
      windows_{engine, batch_max},
      packed_(batch_max * pixels),
      labels_(batch_max),
      targets_{engine.ids(batch_max)},
      images_{engine.array(batch_max * pixels)},
      pooled_{engine.array(batch_max * pooled)},
      hidden_{engine.array(batch_max * hidden)},
      logits_{engine.array(batch_max * classes)},
      losses_{engine.array(batch_max + 1)},
      dpooled_{engine.array(batch_max * pooled)},
      dhidden_{engine.array(batch_max * hidden)} {}

template <class E>
void Model<E>::initialise(const elrun::RandomStream& random) {
  const auto windows = windows_unit_.use(), dense = dense_.use(), head = head_.use();
  std::uint32_t operation = 0;
  std::vector<float> values;
  const auto normal = [&](const elrun::Tensor<float>& tensor, std::size_t inputs) {
    const elrun::RandomStream numbers = random.operation(operation++);
    const float deviation = std::sqrt(2.0f / static_cast<float>(inputs));  // keeps the size of what relu lets through
    values.resize(tensor.size());
    for (std::uint64_t i = 0; i < tensor.size(); ++i) values[i] = deviation * numbers.normal(i);
    tensor.set(values);
  };
  normal(weight1_, window * window);
  normal(weight2_, window * window * channels1);
  normal(weight3_, pooled);
  normal(weight4_, hidden);
  for (const auto& bias : {bias1_, bias2_, bias3_, bias4_}) {
    values.assign(bias.size(), 0.0f);
    bias.set(values);
  }
}

template <class E>
void Model<E>::predict(std::span<const Digit> digits, const Dropouts& dropouts) {
  batch_ = digits.size();
  for (std::size_t i = 0; i < batch_; ++i) {
    std::ranges::copy(digits[i].image, packed_.data() + i * pixels);
    labels_[i] = digits[i].label;
  }
  engine_.write(std::span{packed_}.first(batch_ * pixels), images_.data());
  {
    const auto use = windows_unit_.use();
    windows_.forward(batch_, images_.data(), window_weights(), dropouts.pooled, pooled_.data());
  }
  const auto dense = dense_.use(), head = head_.use();
  nn::fill_rows(engine_, batch_, hidden, bias3_.data(), hidden_.data());
  nn::Linear{pooled, hidden}.forward(engine_, batch_, pooled_.data(), weight3_.data(), hidden_.data(), nn::Into::sum);
  nn::relu_forward(engine_, batch_ * hidden, hidden_.data(), hidden_.data());
  if (dropouts.hidden.dropped > 0) nn::drop_out(engine_, batch_ * hidden, dropouts.hidden, hidden_.data());
  nn::fill_rows(engine_, batch_, classes, bias4_.data(), logits_.data());
  nn::Linear{hidden, classes}.forward(engine_, batch_, hidden_.data(), weight4_.data(), logits_.data(), nn::Into::sum);
}

template <class E>
typename E::Loss Model<E>::loss() {
  const auto* const targets = targets_.hold(std::span{labels_}.first(batch_));
  return nn::cross_entropy(engine_, batch_, classes, targets, logits_.data(), losses_.data());
}

template <class E>
typename E::Loss Model<E>::forward(std::span<const Digit> digits, const elrun::RandomStream& dropout) {
  predict(digits, {.pooled = {dropout.operation(dropout_pooled), dropped_of_pooled}, .hidden = {dropout.operation(dropout_hidden), 128}});
  return loss();
}

template <class E>
typename Model<E>::Score Model<E>::test(std::span<const Digit> digits) {
  predict(digits, {});
  std::vector<float> logits(batch_ * classes);
  engine_.read(logits_.data(), logits);
  std::uint64_t correct = 0;
  for (std::size_t i = 0; i < batch_; ++i) {
    const float* const row = logits.data() + i * classes;
    correct += std::max_element(row, row + classes) - row == labels_[i];
  }
  return {loss(), correct};
}

template <class E>
void Model<E>::backward() {
  {
    const auto use = head_.use_grad();
    const nn::Linear head{hidden, classes};
    head.backward_weight(engine_, batch_, logits_.data(), hidden_.data(), weight4_.grad());
    nn::add_rows(engine_, batch_, classes, logits_.data(), classes, bias4_.grad());
    head.backward_input(engine_, batch_, logits_.data(), weight4_.data(), dhidden_.data());
  }
  nn::relu_backward(engine_, batch_ * hidden, dhidden_.data(), hidden_.data(), 2.0f, dhidden_.data());  // and dropout
  {
    const auto use = dense_.use_grad();
    const nn::Linear dense{pooled, hidden};
    dense.backward_weight(engine_, batch_, dhidden_.data(), pooled_.data(), weight3_.grad());
    nn::add_rows(engine_, batch_, hidden, dhidden_.data(), hidden, bias3_.grad());
    dense.backward_input(engine_, batch_, dhidden_.data(), weight3_.data(), dpooled_.data());
  }
  const auto use = windows_unit_.use_grad();
  windows_.backward(batch_, images_.data(), window_weights(), pooled_.data(), dpooled_.data(),
                    {weight1_.grad(), bias1_.grad(), weight2_.grad(), bias2_.grad()});
}

template class Model<nn::Engine>;
#ifdef MNIST_ON_DEVICES
template class Model<nn::DeviceEngine>;
#endif

}  // namespace mnist
