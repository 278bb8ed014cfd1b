#include "rendezvous/net/tcp_facts.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace elrun::inline v0 {
namespace {

constexpr int established = 1, close_wait = 8;  // values of tcpi_state, which <linux/tcp.h> does not name

std::optional<tcp_info> info_of(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return info;
}

}  // namespace

std::optional<TcpFacts> tcp_facts(int socket) {
  const auto info = info_of(socket);
  if (!info) return {};
  return TcpFacts{info->tcpi_state == established || info->tcpi_state == close_wait, info->tcpi_state == close_wait,
                  info->tcpi_bytes_received};
}

std::size_t backlog_length(int listener) {
  const auto info = info_of(listener);
  return info ? info->tcpi_unacked : 0;  // for a listening socket the kernel puts the length of its accept queue here
}

}  // namespace elrun::inline v0
