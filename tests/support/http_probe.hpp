#pragma once
/// \file What a kubelet asks of a health port, and connections by others at a rate.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/fd.hpp"

namespace elrun::test {

struct HealthPort {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;

  /// A socket that is connected, or connecting with SOCK_NONBLOCK.
  [[nodiscard]] Fd connect(int flags = 0) const {
    Fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)};
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    ::inet_pton(AF_INET, address.c_str(), &to.sin_addr);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 && errno != EINPROGRESS) return Fd{};
    return socket;
  }

  /// Whether GET `path` is answered with 200 by then.
  [[nodiscard]] bool answers(const std::string& path, std::chrono::steady_clock::time_point until) const {
    const auto ready = [&](const Fd& socket, short what) {
      pollfd event{socket.get(), what, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
      return left > 0 && ::poll(&event, 1, static_cast<int>(left)) == 1;
    };
    const Fd socket = connect(SOCK_NONBLOCK);
    if (!socket || !ready(socket, POLLOUT)) return false;
    const std::string ask = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    if (::send(socket.get(), ask.data(), ask.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(ask.size()) || !ready(socket, POLLIN))
      return false;
    char reply[64];
    const ssize_t size = ::recv(socket.get(), reply, sizeof reply, 0);
    return size > 12 && std::string{reply, 12} == "HTTP/1.1 200";
  }
};

/// Others, on a thread of their own, that connect so many times a second until it is destroyed.
class ConnectionStorm {
 public:
  enum class Habit { closes, asks, stays };  ///< At once; asks for the metrics and stays; says nothing and stays.

  ConnectionStorm(HealthPort to, Habit habit, double per_second)
      : to_{std::move(to)}, thread_{[this, habit, per_second] { run(habit, per_second); }} {}
  ~ConnectionStorm() {
    over_ = true;
    thread_.join();
  }
  ConnectionStorm(const ConnectionStorm&) = delete;
  ConnectionStorm& operator=(const ConnectionStorm&) = delete;
  [[nodiscard]] std::uint64_t made() const { return made_; }

 private:
  void run(Habit habit, double per_second) {
    constexpr std::size_t held_max = 4000;
    std::deque<Fd> held;
    const auto begin = std::chrono::steady_clock::now();
    while (!over_) {
      const double due = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * per_second;
      if (static_cast<double>(made_) >= due) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
        continue;
      }
      ++made_;
      Fd one = to_.connect(SOCK_NONBLOCK);
      if (!one || habit == Habit::closes) continue;
      if (habit == Habit::asks) (void)::send(one.get(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 34, MSG_NOSIGNAL);
      held.push_back(std::move(one));
      if (held.size() > held_max) held.pop_front();
    }
  }

  HealthPort to_;
  std::atomic<bool> over_ = false;
  std::atomic<std::uint64_t> made_ = 0;
  std::thread thread_;
};

}  // namespace elrun::test
