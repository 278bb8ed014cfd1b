#include "samples/gpt/model.hpp"

#include <algorithm>
#include <cmath>

namespace gpt {

using elrun::Tensor;
using elrun::TensorOptions;

namespace {
constexpr TensorOptions no_decay{.decay = false};
}

Model::Block::Block(elrun::Unit u, std::size_t c)
    : unit{u},
      norm1_weight{unit.tensor<float>("norm1.weight", {c}, no_decay)},
      norm1_bias{unit.tensor<float>("norm1.bias", {c}, no_decay)},
      qkv{unit.tensor<float>("qkv", {3 * c, c})},
      mix{unit.tensor<float>("mix", {c, c})},
      norm2_weight{unit.tensor<float>("norm2.weight", {c}, no_decay)},
      norm2_bias{unit.tensor<float>("norm2.bias", {c}, no_decay)},
      expand{unit.tensor<float>("expand", {4 * c, c})},
      contract{unit.tensor<float>("contract", {c, 4 * c})} {}

nn::BlockTensors<const float> Model::Block::weights() const {
  return {norm1_weight.data(), norm1_bias.data(), qkv.data(),    mix.data(),
          norm2_weight.data(), norm2_bias.data(), expand.data(), contract.data()};
}
nn::BlockTensors<float> Model::Block::gradients() const {
  return {norm1_weight.grad(), norm1_bias.grad(), qkv.grad(),    mix.grad(),
          norm2_weight.grad(), norm2_bias.grad(), expand.grad(), contract.grad()};
}

Model::Model(elrun::Job& job, nn::Engine& engine, const Options& options)
    : engine_{engine},
      largest_{.batch = options.micro_batch, .context = options.context, .channels = options.channels, .heads = options.heads},
      embedding_{job.unit("embedding")},
      // The head is the embedding transposed: a slot adds to this gradient twice, at the end and at the beginning.
      tokens_{embedding_.tensor<float>("tokens", {vocabulary, options.channels}, {.uses = 2})},
      place_{job.unit("place")},
      positions_{place_.tensor<float>("positions", {options.context, options.channels})},
      blocks_{[&] {
        std::vector<Block> blocks;
        for (std::uint64_t i = 0; i < options.layers; ++i) blocks.emplace_back(job.unit("block." + std::to_string(i)), options.channels);
        return blocks;
      }()},
      last_{job.unit("last")},
      norm_weight_{last_.tensor<float>("norm.weight", {options.channels}, no_decay)},
      norm_bias_{last_.tensor<float>("norm.bias", {options.channels}, no_decay)},
      shape_{largest_},
      x_(options.layers + 1, std::vector<float>(largest_.rows() * options.channels)),
      recompute_{options.recompute},
      kept_(recompute_ ? 1 : options.layers, nn::BlockActivations{largest_}),
      scratch_{largest_},
      norm_(largest_.rows() * options.channels),
      mean_(largest_.rows()),
      scale_(largest_.rows()),
      logits_(largest_.rows() * vocabulary),
      losses_(largest_.rows()),
      dx_(largest_.rows() * options.channels) {}

void Model::initialise(const elrun::RandomStream& random) {
  const float root = std::sqrt(static_cast<float>(largest_.channels));
  std::uint32_t operation = 0;
  const auto normal = [&](const Tensor<float>& tensor, float deviation) {
    const elrun::RandomStream numbers = random.operation(operation++);
    for (std::uint64_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = deviation * numbers.normal(i);
  };
  const auto fill = [](const Tensor<float>& tensor, float value) { std::ranges::fill(tensor.span(), value); };
  const auto use = [](elrun::Unit unit) { return unit.use(); };
  {
    const auto tokens = use(embedding_), positions = use(place_), last = use(last_);
    normal(tokens_, 1.0f / root);
    normal(positions_, 1.0f / root);
    fill(norm_weight_, 1);
    fill(norm_bias_, 0);
  }
  // Each block adds to the residual stream twice; this keeps the stream's size as it was, however many blocks there
  // are.
  const float inside = 0.7f / root, to_residual = inside / std::sqrt(2.0f * static_cast<float>(blocks_.size()));
  for (const Block& block : blocks_) {
    const auto scope = use(block.unit);
    for (const Tensor<float>& weight : {block.norm1_weight, block.norm2_weight}) fill(weight, 1);
    for (const Tensor<float>& bias : {block.norm1_bias, block.norm2_bias}) fill(bias, 0);
    for (const Tensor<float>& matrix : {block.qkv, block.expand}) normal(matrix, inside);
    for (const Tensor<float>& matrix : {block.mix, block.contract}) normal(matrix, to_residual);
  }
}

void Model::predict(const nn::BlockShape& shape, const std::int32_t* inputs) {
  shape_ = shape;
  const std::size_t rows = shape.rows(), c = shape.channels;
  {
    const auto tokens = embedding_.use(), positions = place_.use();
    nn::Embedding{c}.forward(engine_, rows, shape.context, inputs, tokens_.data(), positions_.data(), x_[0].data());
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto scope = blocks_[i].unit.use();
    nn::block_forward(engine_, shape, blocks_[i].weights(), x_[i].data(), kept_of(i), scratch_, x_[i + 1].data());
  }
  const auto last = last_.use(), tokens = embedding_.use();
  nn::LayerNorm{c}.forward(engine_, rows, x_.back().data(), norm_weight_.data(), norm_bias_.data(), norm_.data(), mean_.data(),
                           scale_.data());
  nn::Linear{c, vocabulary}.forward(engine_, rows, norm_.data(), tokens_.data(), logits_.data());
}

float Model::forward(std::size_t batch, const std::int32_t* inputs, const std::int32_t* targets) {
  nn::BlockShape shape = largest_;
  shape.batch = batch;
  predict(shape, inputs);
  return nn::cross_entropy(engine_, shape.rows(), vocabulary, targets, logits_.data(), losses_.data());
}

void Model::backward(const std::int32_t* inputs) {
  const std::size_t rows = shape_.rows(), c = shape_.channels;
  float* const dnorm = scratch_.narrow.data();
  {
    const auto tokens = embedding_.use_grad();
    const nn::Linear head{c, vocabulary};
    head.backward_weight(engine_, rows, logits_.data(), norm_.data(), tokens_.grad());
    head.backward_input(engine_, rows, logits_.data(), tokens_.data(), dnorm);
  }
  {
    const auto last = last_.use_grad();
    std::ranges::fill(dx_, 0.0f);
    nn::LayerNorm{c}.backward(engine_, rows, dnorm, x_.back().data(), norm_weight_.data(), mean_.data(), scale_.data(), dx_.data(),
                              norm_weight_.grad(), norm_bias_.grad());
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const auto scope = blocks_[i].unit.use_grad();
    if (recompute_ && i + 1 < blocks_.size())  // the last block's are still there
      nn::block_activations(engine_, shape_, blocks_[i].weights(), x_[i].data(), kept_of(i), scratch_);
    nn::block_backward(engine_, shape_, blocks_[i].weights(), blocks_[i].gradients(), x_[i].data(), kept_of(i), scratch_, dx_.data());
  }
  const auto tokens = embedding_.use_grad(), positions = place_.use_grad();
  nn::Embedding{c}.backward(engine_, rows, shape_.context, inputs, dx_.data(), tokens_.grad(), positions_.grad());
}

std::vector<unsigned char> Model::generate(std::size_t count, const elrun::RandomStream& random) {
  constexpr float temperature = 0.8f;  // below 1: likely bytes become likelier
  std::vector<unsigned char> text{'\n'};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t seen = std::min<std::size_t>(text.size(), largest_.context);
    const std::vector<std::int32_t> inputs(text.end() - static_cast<std::ptrdiff_t>(seen), text.end());
    predict({.batch = 1, .context = seen, .channels = largest_.channels, .heads = largest_.heads}, inputs.data());
    float* const p = logits_.data() + (seen - 1) * vocabulary;
    engine_.kernels().softmax(p, vocabulary, 1 / temperature);
    float left = random.uniform(i);
    std::size_t byte = 0;
    while (byte + 1 < vocabulary && left >= p[byte]) left -= p[byte++];
    text.push_back(static_cast<unsigned char>(byte));
  }
  text.erase(text.begin());
  return text;
}

}  // namespace gpt
