#pragma once
/// \file A client of the admin endpoints: connections that say something, or nothing.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace elrun::test {

/// To a port of the loopback.
class Visitor {
 public:
  explicit Visitor(std::uint16_t port) : socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  Visitor(Visitor&& other) noexcept : socket_{std::exchange(other.socket_, -1)}, connected_{other.connected_} {}
  Visitor& operator=(Visitor&&) = delete;
  ~Visitor() {
    if (socket_ >= 0) ::close(socket_);
  }
  [[nodiscard]] bool connected() const { return connected_; }
  void say(std::string_view text) const { (void)!::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  void says_no_more() const { ::shutdown(socket_, SHUT_WR); }
  /// All that comes until the other end closes; nothing when it does not within `wait`.
  [[nodiscard]] std::string hear(std::chrono::milliseconds wait = std::chrono::seconds{60}) const {
    const auto until = std::chrono::steady_clock::now() + wait;
    std::string text;
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
      pollfd ready{socket_, POLLIN, 0};
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return {};
      char chunk[4096];
      const ssize_t count = ::recv(socket_, chunk, sizeof chunk, 0);
      if (count <= 0) return text.empty() ? "closed" : text;
      text.append(chunk, static_cast<std::size_t>(count));
    }
  }

 private:
  int socket_;
  bool connected_ = false;
};

/// The whole reply to GET `path`; empty when nobody is there.
inline std::string http_get(std::uint16_t port, const std::string& path, const std::string& fields = {}) {
  const Visitor visitor{port};
  if (!visitor.connected()) return {};
  visitor.say("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
  return visitor.hear();
}

}  // namespace elrun::test
