// How fast is the store, beside torch's TCPStore in the same run where torch is installed? One call at a time, many at one
// time, and the gatherings of 2 to 1,000 clients, each with a connection of its own. Either store is a process of its own
// on loopback. TCPStore is driven from Python threads, one to a client, whose calls leave the interpreter's lock. Its set
// waits for no answer. It has neither barrier nor all_gather: they are done over it as torch does them, by add and wait,
// and by a set and a get of every rank's value.

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <elrun/store.hpp>

#include <boost/asio/executor_work_guard.hpp>

#include "lib/base/bytes.hpp"
#include "rendezvous/net/node_link.hpp"

using namespace elrun;

extern char** environ;

namespace {

constexpr int repeats = 5;   // of which the median is told
constexpr int calls = 2000;  // one after the other
constexpr std::uint32_t clients = 4, threads_each = 16;
constexpr int calls_each = 500;  // of each thread
struct Size {
  std::uint32_t clients;
  int rounds;
};
constexpr Size sizes[] = {{2, 200}, {10, 100}, {100, 20}, {1000, 3}};

using Time = std::chrono::steady_clock::time_point;
constexpr auto now = std::chrono::steady_clock::now;
double us_since(Time begin) { return std::chrono::duration<double, std::micro>(now() - begin).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Deadline soon() { return deadline_in(300s); }

std::unique_ptr<Store> connected(const std::string& endpoint) { return connect_store(endpoint, {}, soon()).value(); }

/// What `each(i)` takes on `count` threads at once, in microseconds, the threads' own start not counted.
double together(std::uint32_t count, const std::function<void(std::uint32_t)>& each) {
  std::atomic<std::uint32_t> there = 0;
  std::atomic<bool> go = false;
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      ++there;
      go.wait(false);
      each(i);
    });
  while (there < count) std::this_thread::yield();
  const Time begin = now();
  go = true;
  go.notify_all();
  for (std::thread& thread : threads) thread.join();
  return us_since(begin);
}

/// One number per question.
std::map<std::string, double> measure(const std::string& endpoint) {
  std::map<std::string, double> out;
  const auto store = connected(endpoint);
  const std::string value(64, 'x');
  (void)store->set("k", as_bytes(value), soon());
  const std::vector<std::pair<std::string, std::function<bool(Store&)>>> operations{
      {"set", [&](Store& s) { return s.set("k", as_bytes(value), soon()).ok(); }},
      {"get", [&](Store& s) { return s.get("k", soon()).ok(); }},
      {"add", [&](Store& s) { return s.add("n", 1, soon()).ok(); }}};
  for (const auto& [name, operation] : operations) {
    std::vector<double> times;
    for (int i = 0; i < calls; ++i) {
      const Time begin = now();
      if (!operation(*store)) std::abort();
      times.push_back(us_since(begin));
    }
    out[name + " latency"] = median(times);
  }
  std::vector<std::unique_ptr<Store>> several;
  for (std::uint32_t i = 0; i < clients; ++i) several.push_back(connected(endpoint));
  for (const auto& [name, operation] : operations) {
    std::vector<double> rates;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const double us = together(clients * threads_each, [&](std::uint32_t i) {
        for (int n = 0; n < calls_each; ++n)
          if (!operation(*several[i % clients])) std::abort();
      });
      rates.push_back(clients * threads_each * calls_each / us * 1e3);
    }
    out[name + " rate"] = median(rates);
  }
  for (const Size size : sizes) {
    std::vector<std::unique_ptr<Store>> all;
    for (std::uint32_t i = 0; i < size.clients; ++i) all.push_back(connected(endpoint));
    const WorldSize count{size.clients};
    std::vector<double> barriers, gathers;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      barriers.push_back(together(size.clients,
                                  [&](std::uint32_t i) {
                                    for (int n = 0; n < size.rounds; ++n)
                                      if (!all[i]->barrier("b", count, soon()).ok()) std::abort();
                                  }) /
                         size.rounds);
      gathers.push_back(together(size.clients,
                                 [&](std::uint32_t i) {
                                   for (int n = 0; n < size.rounds; ++n)
                                     if (!all[i]->all_gather("g", Rank{i}, count, as_bytes(value), soon()).ok()) std::abort();
                                 }) /
                        size.rounds);
    }
    out[fmt::format("barrier {}", size.clients)] = median(barriers);
    out[fmt::format("all_gather {}", size.clients)] = median(gathers);
  }
  return out;
}

/// The store alone, until standard input ends.
int serve() {
  boost::asio::io_context loop{1};
  const SteadyClock clock;
  const Log log{"store", [](Level, std::string_view) {}};
  const auto coordinator = Coordinator::create(loop, clock, log, {});
  std::printf("%u\n", static_cast<unsigned>(coordinator->serve("127.0.0.1", 0).value()));
  std::fflush(stdout);
  std::thread{[] {
    while (std::getchar() != EOF) {
    }
    std::_Exit(0);
  }}.detach();
  const auto work = boost::asio::make_work_guard(loop);
  loop.run();
  return 0;
}

/// The peer's numbers, by the same names; none when there is no torch.
std::map<std::string, double> measure_peer() {
  const char* source = std::getenv("ELRUN_SOURCE");
  const std::string root = source != nullptr ? source : ELRUN_BENCH_SOURCE;
  std::string argument;
  for (const Size size : sizes) argument += fmt::format(" {}:{}", size.clients, size.rounds);
  std::map<std::string, double> out;
  const char* python = std::getenv("ELRUN_PYTHON");  // of which torch may be a package; else the system's
  std::FILE* pipe = ::popen(fmt::format("{} {}/tests/bench/store_peer.py {} {} {} {}{}", python != nullptr ? python : "/usr/bin/python3",
                                        root, repeats, calls, clients, calls_each, argument)
                                .c_str(),
                            "r");
  if (pipe == nullptr) return out;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string text = line;
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) std::fputs(line, stdout);
    else out[text.substr(0, equals)] = std::strtod(text.c_str() + equals + 1, nullptr);
  }
  ::pclose(pipe);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (argc > 1 && std::string{argv[1]} == "serve") return serve();

  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return 1;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  char serve_word[] = "serve";
  char* words[] = {argv[0], serve_word, nullptr};
  pid_t server = 0;
  if (::posix_spawn(&server, "/proc/self/exe", &actions, nullptr, words, environ) != 0) return 1;
  ::close(out[1]);
  char port[16] = "";
  if (::read(out[0], port, sizeof port - 1) <= 0) return 1;

  const auto ours = measure(fmt::format("127.0.0.1:{}", std::atoi(port)));
  ::close(in[1]);
  ::waitpid(server, nullptr, 0);
  const auto theirs = measure_peer();

  const auto tell = [&](const std::string& name, const std::string& what, const char* unit, double factor) {
    const auto peer = theirs.find(name);
    fmt::print("store: {}: {:.1f} {} (TCPStore: {})\n", what, ours.at(name) * factor, unit,
               peer == theirs.end() ? "not measured" : fmt::format("{:.1f} {}", peer->second * factor, unit));
  };
  for (const char* name : {"set", "get", "add"})
    tell(fmt::format("{} latency", name), fmt::format("{} of 64 bytes, one at a time, median of {}", name, calls), "us", 1);
  for (const char* name : {"set", "get", "add"})
    tell(fmt::format("{} rate", name),
         fmt::format("{}, {} clients with {} threads each, median of {}", name, clients, threads_each, repeats), "thousand/s", 1);
  for (const char* name : {"barrier", "all_gather"})
    for (const Size size : sizes)
      tell(fmt::format("{} {}", name, size.clients),
           fmt::format("{} of {} clients, mean of {} in a row, median of {}", name, size.clients, size.rounds, repeats), "ms", 1e-3);
  return 0;
}
