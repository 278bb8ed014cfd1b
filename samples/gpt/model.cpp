#include "samples/gpt/model.hpp"

#include <algorithm>
#include <cmath>

#ifdef GPT_ON_DEVICES
#include "samples/nn/device_engine.hpp"
#endif
#ifdef GPT_IN_BF16
#include "samples/nn/bf16_engine.hpp"
#endif

namespace gpt {

using elrun::Tensor;
using elrun::TensorOptions;

namespace {
constexpr TensorOptions no_decay{.decay = false};
}

std::vector<nn::Linear> linears(const Options& options) {
  const auto block = nn::block_linears(options.channels);
  std::vector<nn::Linear> all{block.begin(), block.end()};
  all.push_back({options.channels, vocabulary(options)});
  return all;
}

template <class E>
Model<E>::Block::Block(elrun::Unit u, std::size_t c)
    : unit{u},
      norm1_weight{unit.template tensor<Value>("norm1.weight", {c}, no_decay)},
      norm1_bias{unit.template tensor<Value>("norm1.bias", {c}, no_decay)},
      qkv{unit.template tensor<Value>("qkv", {3 * c, c})},
      mix{unit.template tensor<Value>("mix", {c, c})},
      norm2_weight{unit.template tensor<Value>("norm2.weight", {c}, no_decay)},
      norm2_bias{unit.template tensor<Value>("norm2.bias", {c}, no_decay)},
      expand{unit.template tensor<Value>("expand", {4 * c, c})},
      contract{unit.template tensor<Value>("contract", {c, 4 * c})} {}

template <class E>
nn::BlockWeights<E> Model<E>::Block::weights() const {
  return {norm1_weight.data(), norm1_bias.data(), qkv.data(),    mix.data(),
          norm2_weight.data(), norm2_bias.data(), expand.data(), contract.data()};
}
template <class E>
nn::BlockTensors<float> Model<E>::Block::gradients() const {
  return {norm1_weight.grad(), norm1_bias.grad(), qkv.grad(),    mix.grad(),
          norm2_weight.grad(), norm2_bias.grad(), expand.grad(), contract.grad()};
}

template <class E>
Model<E>::Model(elrun::Job& job, E& engine, const Options& options)
    : engine_{engine},
      ids_{options.ids == 0 ? 256 : options.ids},
      vocabulary_{vocabulary(options)},
      largest_{.batch = options.micro_batch, .context = options.context, .channels = options.channels, .heads = options.heads},
      embedding_{job.unit("embedding")},
      // The head is the embedding transposed: a slot adds to this gradient twice, at the end and at the beginning.
      tokens_{embedding_.template tensor<Value>("tokens", {vocabulary_, options.channels}, {.uses = 2})},
      place_{job.unit("place")},
      positions_{place_.template tensor<Value>("positions", {options.context, options.channels})},
      blocks_{[&] {
        std::vector<Block> blocks;
        for (std::uint64_t i = 0; i < options.layers; ++i) blocks.emplace_back(job.unit("block." + std::to_string(i)), options.channels);
        return blocks;
      }()},
      last_{job.unit("last")},
      norm_weight_{last_.template tensor<Value>("norm.weight", {options.channels}, no_decay)},
      norm_bias_{last_.template tensor<Value>("norm.bias", {options.channels}, no_decay)},
      shape_{largest_},
      inputs_{engine.ids(largest_.rows())},
      targets_{engine.ids(largest_.rows())},
      recompute_{options.recompute},
      scratch_{engine, largest_},
      norm_{engine.array(largest_.rows() * options.channels)},
      mean_{engine.floats(largest_.rows())},
      scale_{engine.floats(largest_.rows())},
      logits_{engine.array(largest_.rows() * vocabulary_)},
      losses_{engine.floats(largest_.rows() + 1)},
      dx_{engine.array(largest_.rows() * options.channels)} {
  for (std::uint64_t i = 0; i <= options.layers; ++i) x_.push_back(engine.array(largest_.rows() * options.channels));
  for (std::uint64_t i = 0; i < (recompute_ ? 1 : options.layers); ++i) kept_.emplace_back(engine, largest_);
  for (const nn::Linear& each : linears(options)) each.prepare(engine, largest_.rows());
}

template <class E>
void Model<E>::initialise(const elrun::RandomStream& random) {
  const float root = std::sqrt(static_cast<float>(largest_.channels));
  std::uint32_t operation = 0;
  std::vector<float> values;
  const auto normal = [&](const Tensor<Value>& tensor, float deviation) {
    const elrun::RandomStream numbers = random.operation(operation++);
    values.resize(tensor.size());
    for (std::uint64_t i = 0; i < tensor.size(); ++i) values[i] = deviation * numbers.normal(i);
    tensor.set(values);
  };
  const auto fill = [&](const Tensor<Value>& tensor, float value) {
    values.assign(tensor.size(), value);
    tensor.set(values);
  };
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
    for (const Tensor<Value>& weight : {block.norm1_weight, block.norm2_weight}) fill(weight, 1);
    for (const Tensor<Value>& bias : {block.norm1_bias, block.norm2_bias}) fill(bias, 0);
    for (const Tensor<Value>& matrix : {block.qkv, block.expand}) normal(matrix, inside);
    for (const Tensor<Value>& matrix : {block.mix, block.contract}) normal(matrix, to_residual);
  }
}

template <class E>
void Model<E>::predict(const nn::BlockShape& shape, std::span<const std::int32_t> inputs) {
  shape_ = shape;
  read_inputs_ = inputs_.hold(inputs);
  const std::size_t rows = shape.rows(), c = shape.channels;
  {
    const auto tokens = embedding_.use(), positions = place_.use();
    nn::Embedding{c}.forward(engine_, rows, shape.context, read_inputs_, tokens_.data(), positions_.data(), x_[0].data());
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto scope = blocks_[i].unit.use();
    nn::block_forward(engine_, shape, blocks_[i].weights(), x_[i].data(), kept_of(i), scratch_, x_[i + 1].data());
  }
  const auto last = last_.use(), tokens = embedding_.use();
  nn::LayerNorm{c}.forward(engine_, rows, x_.back().data(), norm_weight_.data(), norm_bias_.data(), norm_.data(), mean_.data(),
                           scale_.data());
  nn::Linear{c, vocabulary_}.forward(engine_, rows, norm_.data(), tokens_.data(), logits_.data());
}

template <class E>
typename E::Loss Model<E>::forward(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets) {
  nn::BlockShape shape = largest_;
  shape.batch = inputs.size() / shape.context;
  predict(shape, inputs);
  return nn::cross_entropy(engine_, shape.rows(), vocabulary_, targets_.hold(targets), logits_.data(), losses_.data());
}

template <class E>
void Model<E>::backward() {
  const std::size_t rows = shape_.rows(), c = shape_.channels;
  Value* const dnorm = scratch_.narrow.data();
  {
    const auto tokens = embedding_.use_grad();
    const nn::Linear head{c, vocabulary_};
    head.backward_weight(engine_, rows, logits_.data(), norm_.data(), tokens_.grad());
    head.backward_input(engine_, rows, logits_.data(), tokens_.data(), dnorm);
  }
  {
    const auto last = last_.use_grad();
    engine_.fill_with_zeros(dx_.data(), rows * c);
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
  nn::Embedding{c}.backward(engine_, rows, shape_.context, vocabulary_, read_inputs_, dx_.data(), tokens_.grad(), positions_.grad());
}

template <class E>
std::vector<std::int32_t> Model<E>::generate(std::size_t count, const elrun::RandomStream& random) {
  constexpr float temperature = 0.8f;  // below 1: likely tokens become likelier
  std::vector<std::int32_t> text{ids_ == 256 ? '\n' : 0};
  std::vector<float> p(ids_);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t seen = std::min<std::size_t>(text.size(), largest_.context);
    predict({.batch = 1, .context = seen, .channels = largest_.channels, .heads = largest_.heads}, std::span{text}.last(seen));
    engine_.read(logits_.data() + (seen - 1) * vocabulary_, p);
    nn::kernels(nn::Isa::baseline)->softmax(p.data(), p.size(), 1 / temperature);
    float left = random.uniform(i);
    std::size_t token = 0;
    while (token + 1 < p.size() && left >= p[token]) left -= p[token++];
    text.push_back(static_cast<std::int32_t>(token));
  }
  text.erase(text.begin());
  return text;
}

template class Model<nn::Engine>;
#ifdef GPT_ON_DEVICES
template class Model<nn::DeviceEngine>;
#endif
#ifdef GPT_IN_BF16
template class Model<nn::Bf16Engine>;
#endif

}  // namespace gpt
