// A language model of flat arrays and plain loops, in the manner of llm.c: one process, no framework. after.cpp is the
// same program once elrun::Job holds its arrays. Eight bytes are looked up in a table, joined, put through a hidden
// layer, and the next byte is predicted (Bengio et al., "A neural probabilistic language model", JMLR 2003).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "samples/flags.hpp"

namespace {

constexpr std::size_t vocabulary = 256, context = 8, width = 16, joined = context * width, hidden = 64, batch = 32;

// All parameters lie in one array, one tensor behind the other; so do their gradients.
enum { table, weight1, bias1, weight2, bias2, tensors };
constexpr std::size_t sizes[tensors] = {vocabulary * width, hidden* joined, hidden, vocabulary* hidden, vocabulary};
constexpr bool decays[tensors] = {true, true, false, true, false};
constexpr float ranges[tensors] = {0.5f, 0.09f, 0, 0.12f, 0};  // initial values are uniform within

void point_into(float* memory, float* (&out)[tensors]) {
  for (std::size_t t = 0; t < tensors; memory += sizes[t++]) out[t] = memory;
}

void initialise(float* const* parameters) {
  std::mt19937 random{1};
  for (std::size_t t = 0; t < tensors; ++t)
    for (std::size_t i = 0; i < sizes[t]; ++i) parameters[t][i] = ranges[t] * (static_cast<float>(random() >> 8) * 0x1p-23f - 1);
}

struct Activations {
  std::vector<float> input, state, logits, dlogits, dstate, dinput;
  explicit Activations(std::size_t rows)
      : input(rows * joined),
        state(rows * hidden),
        logits(rows * vocabulary),
        dlogits(rows * vocabulary),
        dstate(rows * hidden),
        dinput(rows * joined) {}
};

// out[r][o] = bias[o] + the sum of weight[o][i] in[r][i]
void linear(std::size_t rows, std::size_t ins, std::size_t outs, const float* in, const float* weight, const float* bias, float* out) {
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < outs; ++o) {
      float sum = bias[o];
      for (std::size_t i = 0; i < ins; ++i) sum += weight[o * ins + i] * in[r * ins + i];
      out[r * outs + o] = sum;
    }
}

// Adds to the gradients of weight and bias; overwrites din.
void linear_backward(std::size_t rows, std::size_t ins, std::size_t outs, const float* in, const float* weight, const float* dout,
                     float* din, float* dweight, float* dbias) {
  for (std::size_t i = 0; i < rows * ins; ++i) din[i] = 0;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < outs; ++o) {
      const float d = dout[r * outs + o];
      dbias[o] += d;
      for (std::size_t i = 0; i < ins; ++i) {
        din[r * ins + i] += d * weight[o * ins + i];
        dweight[o * ins + i] += d * in[r * ins + i];
      }
    }
}

// The mean loss over `rows` samples; sample k is `context` bytes from `samples[k]` on and the one to predict.
float forward(std::size_t rows, const unsigned char* const* samples, const float* const* parameters, Activations& a) {
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < joined; ++i) a.input[r * joined + i] = parameters[table][samples[r][i / width] * width + i % width];
  linear(rows, joined, hidden, a.input.data(), parameters[weight1], parameters[bias1], a.state.data());
  for (std::size_t i = 0; i < rows * hidden; ++i) a.state[i] = std::tanh(a.state[i]);
  linear(rows, hidden, vocabulary, a.state.data(), parameters[weight2], parameters[bias2], a.logits.data());
  float losses = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* const logits = a.logits.data() + r * vocabulary;
    float* const dlogits = a.dlogits.data() + r * vocabulary;
    float highest = logits[0], sum = 0;
    for (std::size_t o = 1; o < vocabulary; ++o) highest = std::max(highest, logits[o]);
    for (std::size_t o = 0; o < vocabulary; ++o) sum += dlogits[o] = std::exp(logits[o] - highest);
    const std::size_t target = samples[r][context];
    losses += std::log(sum) - (logits[target] - highest);
    for (std::size_t o = 0; o < vocabulary; ++o) dlogits[o] = (dlogits[o] / sum - (o == target ? 1.0f : 0.0f)) / static_cast<float>(rows);
  }
  return losses / static_cast<float>(rows);
}

void backward(std::size_t rows, const unsigned char* const* samples, const float* const* parameters, float* const* gradients,
              Activations& a) {
  linear_backward(rows, hidden, vocabulary, a.state.data(), parameters[weight2], a.dlogits.data(), a.dstate.data(), gradients[weight2],
                  gradients[bias2]);
  for (std::size_t i = 0; i < rows * hidden; ++i) a.dstate[i] *= 1 - a.state[i] * a.state[i];
  linear_backward(rows, joined, hidden, a.input.data(), parameters[weight1], a.dstate.data(), a.dinput.data(), gradients[weight1],
                  gradients[bias1]);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < joined; ++i) gradients[table][samples[r][i / width] * width + i % width] += a.dinput[r * joined + i];
}

// AdamW (Loshchilov, Hutter, 2019), step `t` of which the first is 1.
void adamw(float* const* parameters, const float* const* gradients, float* m, float* v, float lr, unsigned long long t) {
  constexpr float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f;
  const auto bias1_left = static_cast<float>(1 - std::pow(static_cast<double>(beta1), t));
  const auto bias2_left = static_cast<float>(1 - std::pow(static_cast<double>(beta2), t));
  for (std::size_t k = 0; k < tensors; m += sizes[k], v += sizes[k], ++k)
    for (std::size_t i = 0; i < sizes[k]; ++i) {
      const float g = gradients[k][i];
      float& p = parameters[k][i];
      m[i] = std::fma(beta1, m[i], (1 - beta1) * g);
      v[i] = std::fma(beta2, v[i], (1 - beta2) * (g * g));
      if (decays[k]) p = std::fma(-(lr * weight_decay), p, p);
      p = std::fma(-(lr / bias1_left), m[i] / (std::sqrt(v[i] / bias2_left) + epsilon), p);
    }
}

// Samples are visited by a walk that spreads them over the text.
const unsigned char* sample(const std::vector<unsigned char>& text, std::uint64_t position) {
  return text.data() + position * 2654435761u % (text.size() - context);
}

struct Options {
  std::string data;
  std::uint64_t steps = 60;
  double lr = 5e-3;
  bool help = false;
};
const flags::Flag<Options> flag_table[] = {
    {"data", "FILE", &Options::data, 0, 0, "the text to learn, any bytes; without it a made-up one"},
    {"steps", "N", &Options::steps, 1, 1 << 30, "steps of training"},
    {"lr", "X", &Options::lr, 0, 0, "learning rate"},
};

void train(const Options& options, const std::vector<unsigned char>& text) {
  std::size_t count = 0;
  for (const std::size_t size : sizes) count += size;
  std::vector<float> parameter_memory(count), gradient_memory(count), m(count), v(count);
  float *parameters[tensors], *gradients[tensors];
  point_into(parameter_memory.data(), parameters);
  point_into(gradient_memory.data(), gradients);
  initialise(parameters);
  Activations activations{batch};
  const unsigned char* samples[batch];
  const auto lr = static_cast<float>(options.lr);
  float loss = 0;
  std::uint64_t position = 0;
  for (unsigned long long step = 1; step <= options.steps; ++step) {
    for (const unsigned char*& s : samples) s = sample(text, position++);
    std::fill(gradient_memory.begin(), gradient_memory.end(), 0.0f);
    loss = forward(batch, samples, parameters, activations);
    backward(batch, samples, parameters, gradients, activations);
    adamw(parameters, gradients, m.data(), v.data(), lr, step);
    std::printf("step=%llu loss=%.9g\n", step, static_cast<double>(loss));
  }
  std::printf("done step=%llu loss=%.9g\n", static_cast<unsigned long long>(options.steps), static_cast<double>(loss));
}

// Words drawn at random, where there is no text.
std::vector<unsigned char> made_up_text() {
  static constexpr const char* words[] = {"rank ", "shard ", "the ", "of ", "a ", "step\n", "world ", "and ", "leaves "};
  std::mt19937 random{1};
  std::string text;
  for (int i = 0; i < 4000; ++i) text += words[random() % std::size(words)];
  return {text.begin(), text.end()};
}

}  // namespace

int main(int argc, char** argv) {
  flags::Parsed<Options> parsed = flags::parse(flag_table, "flat_before", {argv + 1, argv + argc});
  if (parsed.options.help) return std::fputs(flags::help(flag_table).c_str(), stdout) < 0 ? 1 : 0;
  std::vector<unsigned char> text = made_up_text();
  if (const std::string& path = parsed.options.data; !path.empty()) {
    std::ifstream in{path, std::ios::binary};
    text.assign(std::istreambuf_iterator<char>{in}, {});
    if (text.size() <= context) {
      parsed.problems.push_back("--data '" + path + "' cannot be read, or has no 9 bytes: name a longer text");
      parsed.exit_code = flags::no_input;
    }
  }
  if (!parsed.problems.empty()) return flags::refuse("flat_before", parsed);
  train(parsed.options, text);
  return 0;
}
