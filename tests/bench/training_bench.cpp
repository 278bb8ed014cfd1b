// What does training itself cost? The fused pass of AdamW beside the copying of memory; steps of the gpt sample whose result
// is the same in every world beside steps with Reduce::fast; steps of more and more workers, each with the same work; and what
// Plan::overlap gains, where the wire is as fast as memory and where it is not.
//
//   training_bench [REPEATS]            7 without arguments
//   training_bench overlap [REPEATS]    the last of it alone
//
// The slow wire is the loopback of a network namespace of its own, with a limit of tc; without the right to make one it is left out.
//
// What is compared is run in turns, and told as the median of the repeats. Workers beyond the cores share them: the step of
// W workers on C cores cannot take less than W / C times that of one, which is the floor it is held against.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
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
  fmt::print(
      "training: AdamW of {} elements, one thread: {:.1f} GB/s read and written, median of {} (memory copy: {:.1f} GB/s; ratio {:.2f})\n",
      elements, a, repeats, c, a / c);
}

struct Model {
  const char* name;
  std::vector<std::string> arguments;
};

/// Milliseconds of one step, by the median of its job's steps after the first ten.
double step_ms(const std::string& text, int workers, int slots, const Model& model, std::vector<std::string> more, int slot_samples = 1,
               const std::string& transport = "auto") {
  more.insert(more.begin(), model.arguments.begin(), model.arguments.end());
  for (std::string word :
       {std::string{"--global-batch"}, std::to_string(slots * slot_samples), std::string{"--micro-batch"}, std::to_string(slot_samples)})
    more.push_back(std::move(word));
  test::Job job{{.arguments = test::under_elrun({"--nproc_per_node", std::to_string(workers)}, test::gpt_arguments(text, 40, more)),
                 .environment = {{"OMP_NUM_THREADS", "1"}, {"ELRUN_TRANSPORT", transport}}}};
  if (job.wait(test::Wait{300'000}) != 0) throw std::runtime_error("the training failed: " + job.output());
  std::vector<double> times;
  const std::string name = "tokens_per_s=";
  const std::size_t context = std::stoul(model.arguments.at(1));
  std::size_t step = 0;
  for (std::size_t at = job.output().find(name); at != std::string::npos; at = job.output().find(name, at + 1))
    if (++step > 10)
      times.push_back(1e3 * static_cast<double>(context * static_cast<std::size_t>(slots * slot_samples)) /
                      std::strtod(job.output().c_str() + at + name.size(), nullptr));
  if (times.empty()) throw std::runtime_error("no steps: " + job.output());
  return median(times);
}

void exact_beside_fast(const std::string& text, int repeats, const Model& model) {
  for (const char* stage : {"0", "1"}) {
    std::vector<double> exact, fast;
    for (int i = 0; i < repeats; ++i) {
      exact.push_back(step_ms(text, 2, 8, model, {"--zero", stage}));
      fast.push_back(step_ms(text, 2, 8, model, {"--zero", stage, "--reduce", "fast"}));
    }
    fmt::print("training: 2 workers, 8 slots, zero({}), {}: exact {:.2f} ms per step, fast {:.2f} ms, medians of {}; ratio {:.2f}\n", stage,
               model.name, median(exact), median(fast), repeats, median(exact) / median(fast));
  }
}

void more_workers(const std::string& text, int repeats, double cores, const Model& model) {
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

/// What is begun from now on has a network of its own, with a loopback that is up. Empty, or why not.
std::string enter_own_network() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
    return fmt::format("no network namespace of its own: {}", std::strerror(errno));
  const int any = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool up = any >= 0 && ::ioctl(any, SIOCSIFFLAGS, &loopback) == 0;
  if (any >= 0) ::close(any);
  return up ? "" : "its loopback does not come up";
}

/// All that two workers send each other then shares one wire of this rate.
bool limit_wire(const std::string& rate) {
  return std::system(fmt::format("tc qdisc replace dev lo root tbf rate {} burst 256k latency 50ms", rate).c_str()) == 0;
}

void overlap_beside_none(const std::string& text, int repeats, const Model& model, const std::string& wire) {
  constexpr int slot_samples = 4;  // a slot computes about as long as its gradient travels at 1 Gbit/s
  for (const char* stage : {"0", "3"}) {
    const auto ms = [&](const char* overlap) {
      return step_ms(text, 2, 8, model, {"--zero", stage, "--exchange", "slot", "--overlap", overlap}, slot_samples, "tcp");
    };
    std::vector<double> off, on;
    for (int i = 0; i < repeats; ++i) off.push_back(ms("off")), on.push_back(ms("on"));
    fmt::print(
        "training: 2 workers over {}, 8 slots exchanged one by one, zero({}), {}, {} samples each: {:.1f} ms per step, with overlap {:.1f} ms, medians of {}; ratio {:.2f}\n",
        wire, stage, model.name, slot_samples, median(off), median(on), repeats, median(on) / median(off));
  }
}

/// Last, for it leaves this process in another network.
void what_overlap_gains(const std::string& text, int repeats, const Model& model) {
  overlap_beside_none(text, repeats, model, "TCP");
  if (const std::string why = enter_own_network(); !why.empty())
    return fmt::print("training: overlap over a slow wire was left out: {}\n", why);
  for (const char* rate : {"2gbit", "1gbit", "500mbit"}) {
    if (!limit_wire(rate)) return fmt::print("training: overlap over a slow wire was left out: tc (of iproute2) cannot limit a wire\n");
    overlap_beside_none(text, repeats, model, fmt::format("TCP at {}/s", rate));
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::setlinebuf(stdout);
  const bool only_overlap = argc > 1 && std::string_view{argv[1]} == "overlap";
  const int given = only_overlap ? 2 : 1;
  const int repeats = argc > given ? std::max(1, std::atoi(argv[given])) : 7;
  const double cores = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  double load = 0;
  (void)::getloadavg(&load, 1);
  fmt::print("training: on {} cores, load {:.1f} at the beginning\n", cores, load);
  if (!only_overlap) adamw_beside_a_copy(repeats);

  const test::Folder folder;
  const std::string text = folder / "text";
  const Model models[] = {
      {"0.8 million weights, slots of 64 tokens", {"--context", "64", "--layers", "4", "--channels", "128", "--heads", "4"}},
      {"4.8 million weights, slots of 16 tokens", {"--context", "16", "--layers", "6", "--channels", "256", "--heads", "4"}}};
  try {
    if (!only_overlap) {
      for (const Model& model : models) exact_beside_fast(text, repeats, model);
      for (const Model& model : models) more_workers(text, repeats, cores, model);
    }
    what_overlap_gains(text, repeats, models[0]);
  } catch (const std::exception& why) {
    fmt::print(stderr, "training_bench: {}\n", why.what());
    return 1;
  }
}
