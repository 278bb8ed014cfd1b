// Does the health port answer a liveness probe while others make thousands of connections a second? A real agent; probes ask
// /livez every 100 ms with the 1 s that Kubernetes gives them by default.
//
//   health_bench [SECONDS [CONNECTIONS PER SECOND]]      10 and 3000 without arguments
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/http_probe.hpp"
#include "tests/support/spawn.hpp"

using namespace std::chrono_literals;
using elrun::test::ConnectionStorm;
using elrun::test::HealthPort;
using Clock = std::chrono::steady_clock;
using Habit = ConnectionStorm::Habit;

namespace {

void measure(const char* what, Habit habit, const HealthPort& port, double seconds, double per_second) {
  const ConnectionStorm others{port, habit, per_second};
  std::vector<double> took;
  std::size_t unanswered = 0;
  const auto begin = Clock::now();
  for (auto next = begin; Clock::now() < begin + std::chrono::duration<double>(seconds);) {
    std::this_thread::sleep_until(next);
    const auto asked = Clock::now();
    if (port.answers("/livez", asked + 1s)) took.push_back(std::chrono::duration<double, std::milli>(Clock::now() - asked).count());
    else ++unanswered;
    next = std::max(next + 100ms, Clock::now());
  }
  const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(took.begin(), took.end());
  std::printf("health port: %s: %.0f connections a second; %zu of %zu probes answered within 1 s; median %.1f ms, slowest %.1f ms\n", what,
              static_cast<double>(others.made()) / spent, took.size(), took.size() + unanswered, took.empty() ? 0 : took[took.size() / 2],
              took.empty() ? 0 : took.back());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10, per_second = argc > 2 ? std::atof(argv[2]) : 3000;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const HealthPort port{.port = elrun::test::free_port()};
  elrun::test::Job agent{
      {.arguments = {"--nproc_per_node", "1", "--health_port", "127.0.0.1:" + std::to_string(port.port), "--no_python", "sleep", "600"}}};
  if (!agent.line("health, status and metrics at")) return std::fputs("the agent did not open its health port\n", stderr), 1;
  measure("nobody else", Habit::closes, port, std::min(seconds, 2.0), 0);
  measure("others that connect and close", Habit::closes, port, seconds, per_second);
  measure("others that ask for the metrics", Habit::asks, port, seconds, per_second);
  measure("others that say nothing and stay", Habit::stays, port, seconds, per_second);
}
