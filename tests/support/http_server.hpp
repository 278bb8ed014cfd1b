#pragma once
/// \file A server on the loopback, good or hostile: one connection after the other, each handled by a function of the test.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

namespace elrun::test {

/// `handle` is called on a thread of its own with each connection, which is closed when it returns.
class LoopbackServer {
 public:
  explicit LoopbackServer(std::function<void(int)> handle) : listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_, 16) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread{[this, handle = std::move(handle)] {
      while (!stops()) {
        pollfd ready{listener_, POLLIN, 0};
        if (::poll(&ready, 1, 50) <= 0) continue;
        const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (socket < 0) continue;
        handle(socket);
        ::close(socket);
      }
    }};
  }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;
  ~LoopbackServer() { stop(); }
  /// Nobody listens after that.
  void stop() {
    if (stops_.exchange(true)) return;
    thread_.join();
    ::close(listener_);
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] bool stops() const { return stops_; }
  /// For a handler that says nothing: until the other end closes, or the server stops.
  void wait_for_end(int socket) const {
    for (char byte = 0; !stops();) {
      pollfd ready{socket, POLLIN, 0};
      if (::poll(&ready, 1, 50) > 0 && ::recv(socket, &byte, 1, 0) <= 0) return;
    }
  }

 private:
  int listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

/// All that comes until the end of a request's head.
inline std::string request_head(int socket) {
  std::string head;
  char byte = 0;
  while (head.size() < 65536 && head.find("\r\n\r\n") == std::string::npos && ::recv(socket, &byte, 1, 0) == 1) head += byte;
  return head;
}

inline void answer(int socket, int status, const std::string& body, const std::string& fields = {}) {
  const std::string text =
      "HTTP/1.1 " + std::to_string(status) + " x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body;
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

/// What several threads append to and read.
class Heard {
 public:
  void add(std::string text) {
    const std::lock_guard lock{mutex_};
    texts_.push_back(std::move(text));
  }
  [[nodiscard]] std::vector<std::string> all() const {
    const std::lock_guard lock{mutex_};
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace elrun::test
