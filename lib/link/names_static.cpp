// Names for a program without shared libraries, which cannot load what NSS would: c-ares reads /etc/hosts, and asks the
// servers of /etc/resolv.conf. Linked in place of names.cpp.
#include <ares.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <cstring>
#include <memory>

#include "lib/base/clock.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration lookup_timeout = 30s;  // as glibc's, with two servers and its own defaults

struct Answer {
  std::uint16_t port = 0;  // c-ares takes none of 0
  bool is_there = false;
  int status = ARES_SUCCESS;
  std::vector<SocketAddress> addresses;
};

void take(void* to, int status, int, ares_addrinfo* found) {
  auto& answer = *static_cast<Answer*>(to);
  answer.is_there = true;
  answer.status = status;
  const std::unique_ptr<ares_addrinfo, decltype(&ares_freeaddrinfo)> owner{found, &ares_freeaddrinfo};
  for (const ares_addrinfo_node* node = found != nullptr ? found->nodes : nullptr; node != nullptr; node = node->ai_next) {
    if (node->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& address = answer.addresses.emplace_back();
    std::memcpy(&address.storage, node->ai_addr, node->ai_addrlen);
    address.size = node->ai_addrlen;
    auto& ip_port = address.family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port
                                                 : reinterpret_cast<sockaddr_in&>(address.storage).sin_port;
    ip_port = htons(answer.port);
  }
}

// Until the answer is there, or the time is over.
void wait_for(ares_channel channel, const Answer& answer, const Clock& clock) {
  const Instant until = clock.now() + lookup_timeout;
  while (!answer.is_there && clock.now() < until) {
    std::array<ares_socket_t, ARES_GETSOCK_MAXNUM> sockets{};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // c-ares 1.34 would rather call back; Debian 12 has 1.18
    const int wanted = ares_getsock(channel, sockets.data(), static_cast<int>(sockets.size()));
#pragma GCC diagnostic pop
    std::array<pollfd, ARES_GETSOCK_MAXNUM> watched{};
    nfds_t count = 0;
    for (int i = 0; i < static_cast<int>(sockets.size()); ++i) {
      const bool reads = ARES_GETSOCK_READABLE(wanted, i), writes = ARES_GETSOCK_WRITABLE(wanted, i);
      if (reads || writes)
        watched[count++] = {sockets[static_cast<std::size_t>(i)], static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0};
    }
    timeval most{1, 0}, next{};
    const timeval* wait = ares_timeout(channel, &most, &next);
    ::poll(watched.data(), count, static_cast<int>(wait->tv_sec * 1000 + wait->tv_usec / 1000) + 1);
    for (nfds_t i = 0; i < count; ++i)
      ares_process_fd(channel, (watched[i].revents & (POLLIN | POLLERR | POLLHUP)) != 0 ? watched[i].fd : ARES_SOCKET_BAD,
                      (watched[i].revents & POLLOUT) != 0 ? watched[i].fd : ARES_SOCKET_BAD);
    ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);  // its own time-outs
  }
}

}  // namespace

Result<std::vector<SocketAddress>> resolve(const std::string& host, std::uint16_t port) {
  if (auto literal = literal_address(host, port)) return std::vector{*literal};
  static const int ready = ares_library_init(ARES_LIB_INIT_ALL);  // once, and for the life of the process
  ares_options options{};
  char files_then_servers[] = "fb";
  options.lookups = files_then_servers;
  ares_channel raw = nullptr;
  int status = ready != ARES_SUCCESS ? ready : ares_init_options(&raw, &options, ARES_OPT_LOOKUPS);
  if (status != ARES_SUCCESS) return name_does_not_resolve(host, ares_strerror(status));
  Answer answer{.port = port};  // outlives the channel, whose end answers what is still asked
  {
    const std::unique_ptr<ares_channeldata, decltype(&ares_destroy)> channel{raw, &ares_destroy};
    ares_addrinfo_hints hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    ares_getaddrinfo(raw, host.c_str(), nullptr, &hints, take, &answer);
    wait_for(raw, answer, SteadyClock{});
  }
  status = answer.status == ARES_EDESTRUCTION ? ARES_ETIMEOUT : answer.status;
  if (answer.addresses.empty()) return name_does_not_resolve(host, ares_strerror(status == ARES_SUCCESS ? ARES_ENODATA : status));
  return std::move(answer.addresses);
}

}  // namespace elrun::inline v0
