// What does a save cost training? For how long it stops a step, with saves that block and with asynchronous ones, beside a warm copy of the same bytes; and
// how many steps come in a second while checkpoints are written.
//
//   async_save_bench [MILLIONS]    elements of the model, 32 without arguments: 12 bytes each are saved
//
// The program starts itself under elrun, as one worker. The parts of one comparison run one after the other, on the same storage.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <elrun/elrun.hpp>

#include "tests/support/spawn.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned steps = 25, every = 5, slots = 4;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// A step reads and writes the model a few times, as any does.
void train(elrun::Job& job, std::uint64_t elements, const std::string& root, bool async) {
  job.configure({.global_batch = slots, .micro_batch = 1, .samples = 1000, .steps = steps, .seed = 1},
                {.directory = root, .every = root.empty() ? 0u : every, .keep = 2, .async = async});
  auto unit = job.unit("model");
  auto weights = unit.tensor<float>("weights", {elements});
  job.seal();
  if (!job.restore()) std::ranges::fill(weights.span(), 0.5f);
  auto before = Clock::now();
  while (auto step = job.next_step()) {
    for (auto& slot : step->slots()) {
      auto scope = unit.use_grad();
      const auto in = weights.span(), out = weights.grad_span();
      for (std::uint64_t i = 0; i < elements; ++i) out[i] = in[i] * 1e-3f;
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

Steps run(const std::string& self, std::uint64_t millions, const std::string& root, const char* how) {
  elrun::test::Job job{{.arguments = {"--no_python", self, "worker", std::to_string(millions), root, how}}};
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
    (step % every == 1 ? out.with : out.without).push_back(took);
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
  const Steps none = run(self, millions, "", "none"), sync = run(self, millions, blocks.path() + "/ck", "sync"),
              async = run(self, millions, goes_on.path() + "/ck", "async");
  const double step = median(none.without);
  fmt::print(
      "save: {:.2f} GB, steps of {:.0f} ms: blocking stops a step for {:.0f} ms per GB, asynchronous {:.0f} ms per GB, median of {} (warm copy: {:.0f} ms per GB)\n",
      gb, step * 1e3, (median(sync.with) - step) / gb * 1e3, (median(async.with) - step) / gb * 1e3, async.with.size(), copy / gb * 1e3);
  fmt::print("save: steps per second with an asynchronous save every {} steps: {:.1f} % of those without saves (blocking: {:.1f} %)\n",
             every, none.all / async.all * 100, none.all / sync.all * 100);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::string{argv[1]} == "worker") {
    const std::uint64_t elements = std::stoull(argv[2]) * 1'000'000;
    const std::string root = argv[3], how = argv[4];
    return elrun::run(argc, argv, [&](elrun::Job& job) { train(job, elements, root, how == "async"); });
  }
  compare(argv[0], argc > 1 ? std::stoull(argv[1]) : 32);
  return 0;
}
