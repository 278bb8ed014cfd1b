/// How much of what a socket can carry does a collective use? Two ranks in one process over loopback, against a plain
/// pair of sockets that carry as many bytes in both directions at the same time.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/link/socket.hpp"
#include "tests/support/local_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr int rounds = 10;

double seconds(Instant from, Instant to) { return std::chrono::duration<double>(to - from).count(); }

/// Bytes per second in each direction that two blocking TCP sockets carry.
double plain(std::size_t size) {
  const Fd listener = listen_on(resolve("127.0.0.1", 0).value().front()).value();
  const Fd a = connect_begin(local_address(listener.get())).value();
  std::optional<Fd> b;
  while (!b) b = std::move(accept_one(listener.get())).value();
  for (const int fd : {a.get(), b->get()}) (void)::fcntl(fd, F_SETFL, 0);
  const SteadyClock clock;
  const Instant begin = clock.now();
  const auto move = [&](int fd, bool out) {
    std::vector<std::byte> data(size);
    for (int i = 0; i < rounds; ++i) {
      for (std::size_t at = 0; at < size;) {
        const ssize_t n = out ? ::send(fd, data.data() + at, size - at, MSG_NOSIGNAL) : ::recv(fd, data.data() + at, size - at, 0);
        if (n <= 0) std::exit(1);
        at += static_cast<std::size_t>(n);
      }
    }
  };
  std::thread threads[] = {std::thread{move, a.get(), true}, std::thread{move, a.get(), false}, std::thread{move, b->get(), true},
                           std::thread{move, b->get(), false}};
  for (std::thread& thread : threads) thread.join();
  return rounds * static_cast<double>(size) / seconds(begin, clock.now());
}

}  // namespace

int main() {
  for (const std::size_t size : {std::size_t{4} << 20, std::size_t{64} << 20}) {
    const double bound = plain(size);
    LocalWorld local{2};
    local.run([&](std::uint32_t rank, Session& session) {
      auto group = std::move(ProcessGroup::join(session)).value();
      const SteadyClock clock;
      std::vector<std::byte> in(size), out(2 * size);
      std::vector<float> data(size / sizeof(float), 1.0f);
      group.all_gather(in, out).value();
      group.barrier().value();
      const Instant begin = clock.now();
      for (int i = 0; i < rounds; ++i) group.all_gather(in, out).value();
      const double gather = rounds * static_cast<double>(size) / seconds(begin, clock.now());
      const Instant middle = clock.now();
      for (int i = 0; i < rounds; ++i) group.all_reduce(std::span{data}, ReduceOp::avg).value();
      const double reduce = rounds * static_cast<double>(size) / seconds(middle, clock.now());
      const Instant small = clock.now();
      for (int i = 0; i < 1000; ++i) group.barrier().value();
      const double barrier = seconds(small, clock.now()) / 1000;
      if (rank != 0) return;
      std::printf("all_gather, 2 ranks, %zu MiB each: %.2f GB/s each way (plain sockets: %.2f GB/s)\n", size >> 20, gather / 1e9,
                  bound / 1e9);
      std::printf("all_reduce, 2 ranks, %zu MiB: %.2f GB/s (plain sockets: %.2f GB/s)\n", size >> 20, reduce / 1e9, bound / 1e9);
      std::printf("barrier, 2 ranks: %.0f us\n", barrier * 1e6);
    });
  }
}
