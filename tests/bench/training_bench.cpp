// What does training itself cost? The fused pass of AdamW beside the copying of memory; steps of the gpt sample whose result
// is the same in every world beside steps with Reduce::fast; and steps of more and more workers, each with the same work.
//
//   training_bench [REPEATS]      7 without arguments
//
// What is compared is run in turns, and told as the median of the repeats. Workers beyond the cores share them: the step of
// W workers on C cores cannot take less than W / C times that of one, which is the floor it is held against.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "kernels/adamw.hpp"
#include "tests/support/gpt_job.hpp"

using namespace elrun;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_of(const std::function<void()>& work) {
  const Clock::time_point begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One thread, as a worker's update has it, on memory that no cache holds.
void adamw_beside_a_copy(int repeats) {
  constexpr std::size_t elements = std::size_t{16} << 20;
  std::vector<float> parameter(elements, 0.5f), exp_avg(elements, 0.1f), exp_avg_sq(elements, 0.2f), gradient(elements, 0.3f);
  const AdamWStep step{.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .bias1 = 0.1f, .bias2 = 0.05f};
  std::vector<double> update, copy;
  for (int i = 0; i < repeats; ++i) {
    update.push_back(seconds_of([&] { adamw(parameter, exp_avg, exp_avg_sq, gradient, step); }));
    copy.push_back(seconds_of([&] { std::memcpy(exp_avg.data(), gradient.data(), elements * sizeof(float)); }));
    std::fill(exp_avg.begin(), exp_avg.end(), 0.1f);
  }
  constexpr double update_bytes = 28.0 * elements, copy_bytes = 8.0 * elements;  // read and written
  const double a = update_bytes / median(update) / 1e9, c = copy_bytes / median(copy) / 1e9;
  fmt::print("training: AdamW of {} elements, one thread: {:.1f} GB/s read and written, median of {} (memory copy: {:.1f} GB/s; ratio {:.2f})\n",
             elements, a, repeats, c, a / c);
}

struct Model {
  const char* name;
  std::vector<std::string> arguments;
};

/// Milliseconds of one step, by the median of its job's steps after the first ten.
double step_ms(const std::string& text, int workers, int slots, const Model& model, std::vector<std::string> more) {
  more.insert(more.begin(), model.arguments.begin(), model.arguments.end());
  for (std::string word : {std::string{"--global-batch"}, std::to_string(slots), std::string{"--micro-batch"}, std::string{"1"}}) more.push_back(std::move(word));
  test::Job job{{.arguments = test::under_elrun({"--nproc_per_node", std::to_string(workers)}, test::gpt_arguments(text, 40, more)),
                 .environment = {{"OMP_NUM_THREADS", "1"}}}};
  if (job.wait(test::Wait{300'000}) != 0) throw std::runtime_error("the training failed: " + job.output());
  std::vector<double> times;
  const std::string name = "tokens_per_s=";
  const std::size_t context = std::stoul(model.arguments.at(1));
  std::size_t step = 0;
  for (std::size_t at = job.output().find(name); at != std::string::npos; at = job.output().find(name, at + 1))
    if (++step > 10) times.push_back(1e3 * static_cast<double>(context * static_cast<std::size_t>(slots)) / std::strtod(job.output().c_str() + at + name.size(), nullptr));
  if (times.empty()) throw std::runtime_error("no steps: " + job.output());
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  ::setlinebuf(stdout);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  const double cores = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  double load = 0;
  (void)::getloadavg(&load, 1);
  fmt::print("training: on {} cores, load {:.1f} at the beginning\n", cores, load);
  adamw_beside_a_copy(repeats);

  const test::Folder folder;
  const std::string text = folder / "text";
  const Model models[] = {{"0.8 million weights, slots of 64 tokens", {"--context", "64", "--layers", "4", "--channels", "128", "--heads", "4"}},
                          {"4.8 million weights, slots of 16 tokens", {"--context", "16", "--layers", "6", "--channels", "256", "--heads", "4"}}};
  try {
    for (const Model& model : models)
      for (const char* stage : {"0", "1"}) {
        std::vector<double> exact, fast;
        for (int i = 0; i < repeats; ++i) {
          exact.push_back(step_ms(text, 2, 8, model, {"--zero", stage}));
          fast.push_back(step_ms(text, 2, 8, model, {"--zero", stage, "--reduce", "fast"}));
        }
        fmt::print("training: 2 workers, 8 slots, zero({}), {}: exact {:.2f} ms per step, fast {:.2f} ms, medians of {}; ratio {:.2f}\n", stage, model.name,
                   median(exact), median(fast), repeats, median(exact) / median(fast));
      }
    for (const Model& model : models) {
      const int worlds[] = {1, 2, 4, 8};
      std::vector<std::vector<double>> times(std::size(worlds));
      for (int i = 0; i < repeats; ++i)
        for (std::size_t w = 0; w < std::size(worlds); ++w) times[w].push_back(step_ms(text, worlds[w], 4 * worlds[w], model, {"--zero", "1"}));
      const double alone = median(times[0]);
      for (std::size_t w = 0; w < std::size(worlds); ++w) {
        const double floor = alone * std::max(1.0, worlds[w] / cores);
        fmt::print("training: {} worker{}, 4 slots each, zero(1), {}: {:.2f} ms per step, median of {}; {:.2f} times the floor\n", worlds[w],
                   worlds[w] == 1 ? "" : "s", model.name, median(times[w]), repeats, median(times[w]) / floor);
      }
    }
  } catch (const std::exception& why) {
    fmt::print(stderr, "training_bench: {}\n", why.what());
    return 1;
  }
}
