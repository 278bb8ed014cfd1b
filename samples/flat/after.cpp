// The program of before.cpp once elrun::Job holds its arrays: any number of processes, which may come and go, and the
// same bits. Models, loops and the order of samples are as they were; what is gone is its AdamW. Eight bytes are looked up in a table, joined, put through a hidden
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

#include <elrun/elrun.hpp>
#include "samples/flags.hpp"
#include "samples/format.hpp"

namespace {

constexpr std::size_t vocabulary = 256, context = 8, width = 16, joined = context * width, hidden = 64, batch = 32;

enum { table, weight1, bias1, weight2, bias2, tensors };
constexpr std::size_t sizes[tensors] = {vocabulary * width, hidden* joined, hidden, vocabulary* hidden, vocabulary};
constexpr const char* names[tensors] = {"table", "weight1", "bias1", "weight2", "bias2"};
constexpr bool decays[tensors] = {true, true, false, true, false};
constexpr float ranges[tensors] = {0.5f, 0.09f, 0, 0.12f, 0};  // initial values are uniform within

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

// Samples are visited by a walk that spreads them over the text.
const unsigned char* sample(const std::vector<unsigned char>& text, std::uint64_t position) {
  return text.data() + position * 2654435761u % (text.size() - context);
}

struct Options {
  std::string data;
  std::uint64_t steps = 60;
  double lr = 5e-3;
  std::uint64_t micro_batch = 4;
  std::uint64_t zero = 0;
  std::string checkpoint;
  std::uint64_t every = 0;
  bool help = false;
};
const flags::Flag<Options> flag_table[] = {
    {"data", "FILE", &Options::data, 0, 0, "the text to learn, any bytes; without it a made-up one"},
    {"steps", "N", &Options::steps, 1, 1 << 30, "steps of training"},
    {"lr", "X", &Options::lr, 0, 0, "learning rate"},
    {"micro-batch", "N", &Options::micro_batch, 1, batch, "samples that one worker computes at a time; divides 32"},
    {"zero", "0|1", &Options::zero, 0, 1, "0: every worker keeps all of the optimizer's state; 1: its share"},
    {"checkpoint", "DIR", &Options::checkpoint, 0, 0, "where to keep checkpoints"},
    {"every", "K", &Options::every, 0, 1 << 30, "steps between checkpoints; 0: only at the end"},
};

void train(elrun::Job& job, const Options& options, const std::vector<unsigned char>& text) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a of the text, so that a checkpoint meets its own data again
  for (const unsigned char byte : text) hash = (hash ^ byte) * 1099511628211u;
  job.configure({.global_batch = batch,
                 .micro_batch = options.micro_batch,
                 .samples = elrun::endless,  // in the order of the program, not in one of the job
                 .data_hash = hash,
                 .steps = options.steps,
                 .placement = elrun::zero(static_cast<int>(options.zero)),
                 .numeric = "flat 1"},
                {.directory = options.checkpoint, .every = options.every});
  elrun::Unit unit = job.unit("model");
  elrun::Tensor<float> views[tensors];
  for (std::size_t t = 0; t < tensors; ++t) views[t] = unit.tensor<float>(names[t], {sizes[t]}, {.decay = decays[t]});
  job.seal();
  float *parameters[tensors], *gradients[tensors];
  const bool restored{job.restore()};
  {
    const auto scope = unit.use();
    for (std::size_t t = 0; t < tensors; ++t) parameters[t] = views[t].data();
    if (!restored) initialise(parameters);
  }
  Activations activations{options.micro_batch};
  std::vector<const unsigned char*> samples(options.micro_batch);
  const auto lr = static_cast<float>(options.lr);
  while (auto step = job.next_step()) {
    for (elrun::Slot& slot : step->slots()) {
      for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = sample(text, slot.samples()[i]);
      const auto scope = unit.use_grad();  // weights are there, gradients are zero; handed off when it ends
      for (std::size_t t = 0; t < tensors; ++t) parameters[t] = views[t].data(), gradients[t] = views[t].grad();
      const float loss = forward(samples.size(), samples.data(), parameters, activations);
      backward(samples.size(), samples.data(), parameters, gradients, activations);
      slot.report(loss, samples.size());
    }
    const elrun::StepResult r = step->apply(elrun::AdamW{}, {.lr = lr});
    if (!r.decided) continue;  // the world has changed, and the same step comes again
    job.print(samples::format("step=%llu loss=%.9g", static_cast<unsigned long long>(r.step), static_cast<double>(r.loss)));
  }
  const elrun::Outcome& end = job.outcome();
  job.print(samples::format("done step=%llu loss=%.9g state=%016llx", static_cast<unsigned long long>(end.step),
                            static_cast<double>(end.loss), static_cast<unsigned long long>(end.state_hash)));
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
  flags::Parsed<Options> parsed = flags::parse(flag_table, "flat_after", {argv + 1, argv + argc});
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
  if (!parsed.problems.empty()) return flags::refuse("flat_after", parsed);
  return elrun::run(argc, argv, [&](elrun::Job& job) { train(job, parsed.options, text); });
}
