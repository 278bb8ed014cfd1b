#include "tests/support/relay.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

namespace elrun::test {
namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

sockaddr* generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

}  // namespace

Relay::Relay(std::uint16_t to)
    : target_{to}, listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}, wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (::bind(listener_, generic(address), size) != 0 || ::listen(listener_, SOMAXCONN) != 0 ||
      ::getsockname(listener_, generic(address), &size) != 0)
    throw std::runtime_error{"no port for a relay"};
  port_ = ntohs(address.sin_port);
  thread_ = std::thread{[this] { work(); }};
}

Relay::~Relay() {
  over_ = true;
  wake();
  thread_.join();
  for (const Pair& pair : pairs_) ::close(pair.from), ::close(pair.to);
  ::close(listener_);
  ::close(wake_);
}

void Relay::cut() {
  cut_ = true;
  wake();
}

void Relay::mend() {
  cut_ = false;
  wake();
}

void Relay::wake() const { (void)::eventfd_write(wake_, 1); }

void Relay::work() {
  while (!over_) {
    std::vector<pollfd> polled{{wake_, POLLIN, 0}};
    if (!cut_) {
      polled.push_back({listener_, POLLIN, 0});
      for (const Pair& pair : pairs_) polled.push_back({pair.from, POLLIN, 0}), polled.push_back({pair.to, POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    eventfd_t count = 0;
    (void)::eventfd_read(wake_, &count);
    if (cut_ || polled.size() == 1) continue;
    std::vector<Pair> open;
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const Pair pair = pairs_[i];
      const bool forth = polled[2 + 2 * i].revents == 0 || pass(pair.from, pair.to);
      const bool back = polled[3 + 2 * i].revents == 0 || pass(pair.to, pair.from);
      if (forth && back) open.push_back(pair);
      else ::close(pair.from), ::close(pair.to);
    }
    pairs_ = std::move(open);
    if (polled[1].revents != 0) accept_one();
  }
}

void Relay::accept_one() {
  const int from = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), to = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(target_), source = loopback(0);
  source.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  if (from >= 0 && ::bind(to, generic(source), sizeof source) == 0 && ::connect(to, generic(address), sizeof address) == 0)
    return pairs_.push_back({from, to});
  if (from >= 0) ::close(from);
  ::close(to);
}

// Whether both ends are still open.
bool Relay::pass(int from, int to) {
  std::array<char, 65536> buffer;
  const ssize_t size = ::recv(from, buffer.data(), buffer.size(), 0);
  for (ssize_t sent = 0, more = 0; sent < size; sent += more)
    if ((more = ::send(to, buffer.data() + sent, static_cast<std::size_t>(size - sent), MSG_NOSIGNAL)) <= 0) return false;
  return size > 0;
}

}  // namespace elrun::test
