// What does a save cost training? For how long it stops a step, with saves that block and with asynchronous ones, beside a warm copy of the same bytes; and
// how many steps come in a second while checkpoints are written: for steps that do little but read and write the model, and for steps that compute, as
// those of a training job do.
//
//   async_save_bench [MILLIONS]    elements of the model, 32 without arguments: 12 bytes each are saved
//
// The program starts itself under elrun, as one worker. The parts of one comparison run one after the other, on the same storage.
//
// Steps that compute also run beside a process that copies and writes as many bytes in each step and does nothing else, and beside a busy loop. The first is
// the floor of what continuous saves cost on this machine. The second says whether the machine has a free core at all: virtual processors may share one.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <elrun/elrun.hpp>

#include "tests/support/spawn.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned steps = 25, slots = 4;
constexpr unsigned rounds = 7;  // of the comparison of steps that compute

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

/// Copies and writes `bytes` past the page cache at the begin of each period of `step` seconds, until it is killed. Without a path it is busy all the time.
[[noreturn]] void disturb(std::size_t bytes, double step, const std::string& path) {
  std::atomic<unsigned> turns{0};
  while (path.empty()) ++turns;
  constexpr std::size_t piece = 4u << 20, page = 4096;
  bytes = bytes / piece * piece;
  char* const from = static_cast<char*>(std::aligned_alloc(page, bytes));
  char* const to = static_cast<char*>(std::aligned_alloc(page, bytes));
  std::memset(from, 1, bytes);
  for (auto next = Clock::now();; next += std::chrono::microseconds{static_cast<std::int64_t>(step * 1e6)}) {
    std::this_thread::sleep_until(next);
    std::memcpy(to, from, bytes);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0666);
    for (std::size_t at = 0; at < bytes; at += piece)
      if (::pwrite(file, to + at, piece, static_cast<off_t>(at)) != static_cast<ssize_t>(piece)) std::abort();
    ::fsync(file), ::close(file);
  }
}

/// Steps without saves, beside a process of this program that disturbs them.
Steps run_beside(const std::string& self, std::uint64_t millions, double step, const std::string& path) {
  const elrun::test::Job other{{.arguments = {"disturb", std::to_string(millions), fmt::format("{}", step), path}, .program = self}};
  return run(self, millions, "", "none", computes);
}

/// Steps per second in each round, as parts of a hundred of those without saves in the same round.
void print(const char* what, std::vector<double> percent) {
  std::sort(percent.begin(), percent.end());
  fmt::print("save: steps that compute, {}: {:.1f} % of the steps per second without saves, median of {} ({:.1f} to {:.1f})\n", what,
             median(percent), percent.size(), percent.front(), percent.back());
}

// Continuous saves, beside the same steps without any, in turns.
void compare_computing(const std::string& self, std::uint64_t millions) {
  std::vector<double> async, beside_copies, beside_loop;
  for (unsigned round = 0; round < rounds; ++round) {
    const elrun::test::TemporaryDirectory goes_on, plain;
    const Steps none = run(self, millions, "", "none", computes);
    const double step = none.all / (steps - 2);
    const auto percent = [&](const Steps& other) { return none.all / other.all * 100; };
    async.push_back(percent(run(self, millions, goes_on.path() + "/ck", "async", computes)));
    beside_copies.push_back(percent(run_beside(self, millions, step, plain.path() + "/file")));
    beside_loop.push_back(percent(run_beside(self, millions, step, "")));
    using Entries = std::filesystem::directory_iterator;
    fmt::print("save: round {}: steps of {:.0f} ms, {} checkpoints in {} steps\n", round + 1, step * 1e3,
               std::distance(Entries{goes_on.path() + "/ck/ckpt"}, Entries{}), steps);
  }
  print("one asynchronous save after the other", async);
  print("without saves, beside a process that copies and writes as much", beside_copies);
  print("without saves, beside a busy loop", beside_loop);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 6 && std::string{argv[1]} == "worker") {
    const std::uint64_t elements = std::stoull(argv[2]) * 1'000'000;
    const std::string root = argv[3], how = argv[4];
    const Work work = std::string{argv[5]} == "computes" ? computes : moves;
    return elrun::run(argc, argv, [&](elrun::Job& job) { train(job, elements, root, how == "async", work); });
  }
  if (argc == 5 && std::string{argv[1]} == "disturb") disturb(12'000'000 * std::stoull(argv[2]), std::stod(argv[3]), argv[4]);
  const std::uint64_t millions = argc > 1 ? std::stoull(argv[1]) : 32;
  compare(argv[0], millions);
  compare_computing(argv[0], millions);
  return 0;
}
