// What a kubelet asks of an agent while others connect to the same port: probe_storm ADDRESS PORT CONNECTIONS_PER_SECOND SECONDS. Each path is asked
// every 100 ms, and has 10 s to answer, as the liveness probe of the manifests has. It says how many were answered, and ends with 1 where one was not.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/support/http_probe.hpp"

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const elrun::test::HealthPort port{argv[1], static_cast<std::uint16_t>(std::atoi(argv[2]))};
  const double per_second = std::atof(argv[3]), seconds = std::atof(argv[4]);
  const elrun::test::ConnectionStorm others{port, elrun::test::ConnectionStorm::Habit::asks, per_second};
  int asked = 0, answered = 0;
  double slowest = 0;
  const auto begin = Clock::now();
  for (auto next = begin; next < begin + std::chrono::duration<double>(seconds); next = std::max(next + 100ms, Clock::now())) {
    std::this_thread::sleep_until(next);
    for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
      const auto at = Clock::now();
      ++asked;
      if (port.answers(path, at + 10s)) ++answered;
      else std::printf("%s: no answer\n", path);
      slowest = std::max(slowest, std::chrono::duration<double>(Clock::now() - at).count());
    }
  }
  const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("probes: asked=%d answered=%d slowest_ms=%.0f connections_per_s=%.0f\n", asked, answered, slowest * 1000,
              static_cast<double>(others.made()) / spent);
  return answered == asked ? 0 : 1;
}
