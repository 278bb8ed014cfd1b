#include "tests/support/outsiders.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <deque>
#include <vector>

#include "lib/base/fd.hpp"

namespace elrun::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Outsider {
  Fd socket;
  bool is_connected = false;
  std::size_t said = 0;  // of `again`
  std::uint64_t turn = 0;
};

Fd begin_to_connect(std::uint16_t port, std::size_t host) {
  Fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket) return socket;
  const int on = 1;
  ::setsockopt(socket.get(), SOL_IP, 24 /* IP_BIND_ADDRESS_NO_PORT */, &on, sizeof on);
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + static_cast<std::uint32_t>(host));
  ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from);
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 && errno != EINPROGRESS) return Fd{};
  return socket;
}

}  // namespace

Outsiders::Outsiders(OutsidersOptions options) : options_{std::move(options)}, thread_{[this] { run(); }} {}

Outsiders::~Outsiders() {
  over_ = true;
  thread_.join();
}

void Outsiders::run() {
  struct Due {
    Clock::time_point at;
    std::size_t who;
    std::uint64_t turn;
  };
  const Fd poll{::epoll_create1(EPOLL_CLOEXEC)};
  std::vector<Outsider> all(options_.connections);
  std::deque<Due> due;  // in order of time: all pauses are alike
  const auto begin = [&](std::size_t i) {
    if (all[i].is_connected) --connected_;
    const std::uint64_t turn = all[i].turn + 1;
    all[i] = {begin_to_connect(options_.port, i % options_.addresses), false, 0, turn};
    ++made_;
    epoll_event event{.events = EPOLLOUT | EPOLLIN | EPOLLRDHUP, .data = {.u64 = i}};
    if (all[i].socket) ::epoll_ctl(poll.get(), EPOLL_CTL_ADD, all[i].socket.get(), &event);
    else due.push_back({Clock::now() + options_.pause, i, turn});  // without a port or a descriptor: another time
  };
  for (std::size_t i = 0; i < all.size(); ++i) begin(i);
  std::array<epoll_event, 256> events;
  while (!over_) {
    const int count = ::epoll_wait(poll.get(), events.data(), static_cast<int>(events.size()), 5);
    for (int e = 0; e < count; ++e) {
      const std::size_t i = events[static_cast<std::size_t>(e)].data.u64;
      Outsider& one = all[i];
      bool is_over = (events[static_cast<std::size_t>(e)].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
      if (std::array<char, 4096> bytes; !is_over && (events[static_cast<std::size_t>(e)].events & EPOLLIN) != 0)
        is_over = ::recv(one.socket.get(), bytes.data(), bytes.size(), 0) == 0;
      if (is_over) {
        if (one.is_connected) ++ended_;
        begin(i);
        continue;
      }
      if (one.is_connected) continue;
      one.is_connected = true;
      ++connected_;
      epoll_event reads{.events = EPOLLIN | EPOLLRDHUP, .data = {.u64 = i}};
      ::epoll_ctl(poll.get(), EPOLL_CTL_MOD, one.socket.get(), &reads);
      if (!options_.first.empty()) (void)::send(one.socket.get(), options_.first.data(), options_.first.size(), MSG_NOSIGNAL);
      due.push_back({Clock::now() + options_.pause, i, one.turn});
    }
    for (const auto now = Clock::now(); !due.empty() && due.front().at <= now; due.pop_front()) {
      const auto [at, i, turn] = due.front();
      Outsider& one = all[i];
      if (one.turn != turn) continue;
      if (!one.socket) {
        begin(i);
        continue;
      }
      if (options_.again.empty()) continue;
      const std::size_t from = one.said % options_.again.size(),
                        size = options_.again_bytes == 0 ? options_.again.size() : options_.again_bytes;
      const std::size_t whole = std::min(size, options_.again.size() - from);
      (void)::send(one.socket.get(), options_.again.data() + from, whole, MSG_NOSIGNAL);
      one.said += whole;
      due.push_back({now + options_.pause, i, turn});
    }
  }
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace elrun::test
