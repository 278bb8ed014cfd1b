// Does the health port answer a liveness probe while others make thousands of connections a second? A real agent; probes ask
// /livez every 100 ms with the 1 s that Kubernetes gives them by default.
//
//   health_bench [SECONDS [CONNECTIONS PER SECOND]]      10 and 3000 without arguments
#include <arpa/inet.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/fd.hpp"
#include "tests/support/spawn.hpp"

using elrun::Fd;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

Fd connected(std::uint16_t port, int flags = 0) {
  Fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)};
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 && errno != EINPROGRESS) return Fd{};
  return socket;
}

bool wait_for(const Fd& socket, short what, Clock::time_point until) {
  pollfd event{socket.get(), what, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return left > 0 && ::poll(&event, 1, static_cast<int>(left)) == 1;
}

bool is_answered(std::uint16_t port, Clock::time_point until) {
  const Fd socket = connected(port, SOCK_NONBLOCK);
  if (!socket || !wait_for(socket, POLLOUT, until)) return false;
  const std::string ask = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  if (::send(socket.get(), ask.data(), ask.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(ask.size()) || !wait_for(socket, POLLIN, until))
    return false;
  char reply[64];
  const ssize_t size = ::recv(socket.get(), reply, sizeof reply, 0);
  return size > 12 && std::string{reply, 12} == "HTTP/1.1 200";
}

enum class Habit { closes, asks, stays };

void measure(const char* what, Habit habit, std::uint16_t port, double seconds, double per_second) {
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> made = 0;
  std::thread others{[&] {
    std::deque<Fd> held;
    const auto begin = Clock::now();
    while (!over) {
      const double due = std::chrono::duration<double>(Clock::now() - begin).count() * per_second;
      if (static_cast<double>(made) >= due) {
        std::this_thread::sleep_for(1ms);
        continue;
      }
      ++made;
      Fd one = connected(port, SOCK_NONBLOCK);
      if (!one || habit == Habit::closes) continue;
      if (habit == Habit::asks) (void)::send(one.get(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 34, MSG_NOSIGNAL);
      held.push_back(std::move(one));
      if (held.size() > 4000) held.pop_front();
    }
  }};
  std::vector<double> took;
  std::size_t unanswered = 0;
  const auto begin = Clock::now();
  for (auto next = begin; Clock::now() < begin + std::chrono::duration<double>(seconds);) {
    std::this_thread::sleep_until(next);
    const auto asked = Clock::now();
    if (is_answered(port, asked + 1s)) took.push_back(std::chrono::duration<double, std::milli>(Clock::now() - asked).count());
    else ++unanswered;
    next = std::max(next + 100ms, Clock::now());
  }
  const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
  over = true;
  others.join();
  std::sort(took.begin(), took.end());
  std::printf("health port: %s: %.0f connections a second; %zu of %zu probes answered within 1 s; median %.1f ms, slowest %.1f ms\n", what,
              static_cast<double>(made) / spent, took.size(), took.size() + unanswered, took.empty() ? 0 : took[took.size() / 2],
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
  const std::uint16_t port = elrun::test::free_port();
  elrun::test::Job agent{
      {.arguments = {"--nproc_per_node", "1", "--health_port", "127.0.0.1:" + std::to_string(port), "--no_python", "sleep", "600"}}};
  if (!agent.line("health, status and metrics at")) return std::fputs("the agent did not open its health port\n", stderr), 1;
  measure("nobody else", Habit::closes, port, std::min(seconds, 2.0), 0);
  measure("others that connect and close", Habit::closes, port, seconds, per_second);
  measure("others that ask for the metrics", Habit::asks, port, seconds, per_second);
  measure("others that say nothing and stay", Habit::stays, port, seconds, per_second);
}
