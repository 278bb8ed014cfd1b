// What does a save cost training? For how long it stops a step, with saves that block and with asynchronous ones, beside a warm copy of the same bytes; and
// how many steps come in a second while checkpoints are written: for steps that do little but read and write the model, and for steps that compute, as
// those of a training job do.
//
//   async_save_bench [MILLIONS]    elements of the model, 32 without arguments: 12 bytes each are saved
//
// The program starts itself under elrun, as one worker. The parts of one comparison run one after the other, on the same storage.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <elrun/elrun.hpp>

#include "tests/support/spawn.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned steps = 25, slots = 4;
constexpr unsigned rounds = 3;  // of the comparison of steps that compute

/// What a step does, and how often the job saves.
struct Work {
  unsigned every = 5;  ///< Steps between saves. 1: one save follows the other, for what comes while one is written is left out.
  unsigned per_element =
      1;  ///< Multiplications with an addition, in each slot. A language model of N elements does about 3 N of them for each token.
  unsigned keep = 2;  ///< Checkpoints.
};
constexpr Work moves{}, computes{.every = 1, .per_element = 64, .keep = steps};  // all are kept, and counted

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Of each element in registers, so that `times` costs no memory.
void work(std::span<const float> in, std::span<float> out, unsigned times) {
  constexpr std::size_t block = 64;
  std::array<float, block> held{};
  for (std::size_t begin = 0; begin + block <= in.size(); begin += block) {
    for (std::size_t i = 0; i < block; ++i) held[i] = in[begin + i];
    for (unsigned t = 0; t < times; ++t)
      for (float& value : held) value = value * 0.999f + 1e-3f;
    for (std::size_t i = 0; i < block; ++i) out[begin + i] = held[i] * 1e-3f;
  }
}

// A step reads and writes the model a few times, as any does.
void train(elrun::Job& job, std::uint64_t elements, const std::string& root, bool async, const Work& how) {
  job.configure({.global_batch = slots, .micro_batch = 1, .samples = 1000, .steps = steps, .seed = 1},
                {.directory = root, .every = root.empty() ? 0u : how.every, .keep = how.keep, .async = async});
  auto unit = job.unit("model");
  auto weights = unit.tensor<float>("weights", {elements});
  job.seal();
  if (!job.restore()) std::ranges::fill(weights.span(), 0.5f);
  auto before = Clock::now();
  while (auto step = job.next_step()) {
    for (auto& slot : step->slots()) {
      auto scope = unit.use_grad();
      work(weights.span(), weights.grad_span(), how.per_element);
      slot.report(1, 1);
    }
    const auto result = step->apply(elrun::AdamW{}, {.lr = 1e-3f});
    const double took = seconds_since(before);
    before = Clock::now();
    job.print(fmt::format("took step={} us={}", result.step, static_cast<std::uint64_t>(took * 1e6)));
  }
}

struct Steps {
  std::vector<double> with, without;  // seconds of steps that begin with a save, and of the others
  double all = 0;
};

Steps run(const std::string& self, std::uint64_t millions, const std::string& root, const char* how, const Work& work) {
  elrun::test::Job job{
      {.arguments = {"--no_python", self, "worker", std::to_string(millions), root, how, &work == &computes ? "computes" : "moves"}}};
  const int code = job.wait(elrun::test::Wait{600'000});
  if (code != 0) throw std::runtime_error{fmt::format("exit code {}: {}", code, job.output())};
  Steps out;
  const std::string& text = job.output();
  for (auto at = text.find("took step="); at != text.npos; at = text.find("took step=", at + 1)) {
    const std::string line = text.substr(at, text.find('\n', at) - at);
    const auto step = elrun::test::number_after(line, "step");
    const double took = static_cast<double>(elrun::test::number_after(line, "us")) / 1e6;
    if (step <= 2) continue;
    out.all += took;
    (step % work.every == 1 ? out.with : out.without).push_back(took);
  }
  return out;
}

void compare(const std::string& self, std::uint64_t millions) {
  const elrun::test::TemporaryDirectory blocks, goes_on;
  const double gb = 12e6 * static_cast<double>(millions) / 1e9;
  std::vector<char> from(static_cast<std::size_t>(gb * 1e9), 1), to(from.size(), 2);
  std::vector<double> copies;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), from.size());
    copies.push_back(seconds_since(begin));
  }
  const double copy = median(copies);
  std::vector<char>{}.swap(from), std::vector<char>{}.swap(to);
  const Steps none = run(self, millions, "", "none", moves), sync = run(self, millions, blocks.path() + "/ck", "sync", moves),
              async = run(self, millions, goes_on.path() + "/ck", "async", moves);
  const double step = median(none.without);
  fmt::print(
      "save: {:.2f} GB, steps of {:.0f} ms: blocking stops a step for {:.0f} ms per GB, asynchronous {:.0f} ms per GB, median of {} (warm copy: {:.0f} ms per GB)\n",
      gb, step * 1e3, (median(sync.with) - step) / gb * 1e3, (median(async.with) - step) / gb * 1e3, async.with.size(), copy / gb * 1e3);
  fmt::print("save: steps per second with an asynchronous save every {} steps: {:.1f} % of those without saves (blocking: {:.1f} %)\n",
             moves.every, none.all / async.all * 100, none.all / sync.all * 100);
}

// Continuous saves, beside the same steps without any, in turns: a core is free for `elrun ckptd` where there are two.
void compare_computing(const std::string& self, std::uint64_t millions) {
  for (unsigned round = 0; round < rounds; ++round) {
    const elrun::test::TemporaryDirectory goes_on;
    const Steps none = run(self, millions, "", "none", computes), async = run(self, millions, goes_on.path() + "/ck", "async", computes);
    using Entries = std::filesystem::directory_iterator;
    fmt::print(
        "save: steps of {:.0f} ms that compute, with one asynchronous save after the other: {:.1f} % of the steps per second without saves ({} checkpoints)\n",
        none.all / (steps - 2) * 1e3, none.all / async.all * 100, std::distance(Entries{goes_on.path() + "/ck/ckpt"}, Entries{}));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 6 && std::string{argv[1]} == "worker") {
    const std::uint64_t elements = std::stoull(argv[2]) * 1'000'000;
    const std::string root = argv[3], how = argv[4];
    const Work work = std::string{argv[5]} == "computes" ? computes : moves;
    return elrun::run(argc, argv, [&](elrun::Job& job) { train(job, elements, root, how == "async", work); });
  }
  const std::uint64_t millions = argc > 1 ? std::stoull(argv[1]) : 32;
  compare(argv[0], millions);
  compare_computing(argv[0], millions);
  return 0;
}
