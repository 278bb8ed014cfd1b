#include "rendezvous/tcp_facts.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace elrun::inline v0 {
namespace {

constexpr int established = 1, close_wait = 8;  // of tcpi_state; the kernel's header has no names for them

}  // namespace

std::optional<TcpFacts> tcp_facts(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return TcpFacts{info.tcpi_state == established || info.tcpi_state == close_wait, info.tcpi_bytes_received};
}

}  // namespace elrun::inline v0
