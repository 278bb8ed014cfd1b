#include "lib/link/socket.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr int backlog = 4096;  // all workers of a large world may dial at one time

Result<Fd> new_socket(int family) {
  Fd fd{::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!fd) return from_errno(errno, "make a socket");
  return fd;
}

/// All addresses of this host, same family and port.
SocketAddress any_like(const SocketAddress& address) {
  SocketAddress any = address;
  if (address.family() == AF_INET) reinterpret_cast<sockaddr_in&>(any.storage).sin_addr.s_addr = htonl(INADDR_ANY);
  if (address.family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(any.storage).sin6_addr = in6addr_any;
  return any;
}

const sockaddr* raw(const SocketAddress& address) { return reinterpret_cast<const sockaddr*>(&address.storage); }

/// Nobody listened at a port from which the system takes those of its connections: it took just that one for this connection, and TCP lets a
/// socket connect to itself.
bool is_to_itself(int socket) {
  const SocketAddress here = local_address(socket);
  SocketAddress there;
  there.size = sizeof there.storage;
  return here.family() != AF_UNIX && ::getpeername(socket, reinterpret_cast<sockaddr*>(&there.storage), &there.size) == 0 &&
         here.port() == there.port() && here.host() == there.host();
}

}  // namespace

std::string SocketAddress::host() const {
  char text[INET_ADDRSTRLEN] = "";
  switch (family()) {
    case AF_INET: return inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, text, sizeof text);
    case AF_INET6: {
      const auto& six = reinterpret_cast<const sockaddr_in6&>(storage);
      boost::asio::ip::address_v6::bytes_type bytes;
      std::memcpy(bytes.data(), &six.sin6_addr, bytes.size());
      return boost::asio::ip::address_v6{bytes, six.sin6_scope_id}.to_string();  // with its zone: fe80::1%eth0
    }
    case AF_UNIX: return reinterpret_cast<const sockaddr_un&>(storage).sun_path;
    default: return {};
  }
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return 0;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == 127;
  if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
  return family() == AF_UNIX;
}

std::string to_string(const SocketAddress& address) {
  if (address.family() == AF_UNIX) {
    const auto& un = reinterpret_cast<const sockaddr_un&>(address.storage);
    constexpr std::size_t name = offsetof(sockaddr_un, sun_path) + 1;
    if (un.sun_path[0] != 0 || address.size <= name) return address.host();
    return fmt::format("@{}", std::string_view{un.sun_path + 1, address.size - name});  // of no folder, as ss shows it
  }
  if (address.family() == AF_INET6) return fmt::format("[{}]:{}", address.host(), address.port());
  return fmt::format("{}:{}", address.host(), address.port());
}

Result<SocketAddress> unix_address(const Path& path) {
  SocketAddress address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  if (path.native().empty() || path.native().size() >= sizeof un.sun_path) {
    return invalid(fmt::format("the socket path \"{}\" has {} bytes; 1 to {} are possible", path.native(), path.native().size(),
                               sizeof un.sun_path - 1));
  }
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path, path.c_str(), path.native().size() + 1);
  address.size = sizeof un;
  return address;
}

std::optional<SocketAddress> literal_address(const std::string& host, std::uint16_t port) {
  boost::system::error_code error;
  const auto ip = boost::asio::ip::make_address(host, error);
  if (error) return std::nullopt;
  const boost::asio::ip::tcp::endpoint endpoint{ip, port};
  SocketAddress address;
  std::memcpy(&address.storage, endpoint.data(), endpoint.size());
  address.size = static_cast<socklen_t>(endpoint.size());
  return address;
}

Failure name_does_not_resolve(const std::string& host, const char* why) {
  return {Code::unreachable, Remedy::retry, fmt::format("the name \"{}\" does not resolve: {}", host, why)};
}

Result<Fd> listen_on(const SocketAddress& address, NotOwn not_own) {
  ELRUN_TRY_ASSIGN(Fd fd, new_socket(address.family()));
  const int on = 1, off = 0;
  // A port whose last owner has just gone may be taken again; one that is served may not.
  if (address.family() != AF_UNIX) (void)setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // All addresses are both kinds, also where the machine (net.ipv6.bindv6only) says otherwise of programs that do not say it.
  if (address.family() == AF_INET6) (void)setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  const auto bound = [&](const SocketAddress& to) { return ::bind(fd.get(), raw(to), to.size) == 0; };
  const auto bound_to_any = [&] { return not_own == NotOwn::any_of_it && errno == EADDRNOTAVAIL && bound(any_like(address)); };
  if (!(bound(address) || bound_to_any()) || ::listen(fd.get(), backlog) != 0) {
    return from_errno(errno, fmt::format("listen on {}", to_string(address)));
  }
  return fd;
}

Result<std::optional<Fd>> accept_one(int listener) {
  for (;;) {
    if (Fd fd{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)}) return std::optional<Fd>{std::move(fd)};
    switch (errno) {
      case EINTR:
      case ECONNABORTED: continue;  // that peer has given up; perhaps another one waits
      case EAGAIN: return std::optional<Fd>{};
      default: return from_errno(errno, "accept a connection");
    }
  }
}

Result<Fd> connect_begin(const SocketAddress& address) {
  ELRUN_TRY_ASSIGN(Fd fd, new_socket(address.family()));
  if (::connect(fd.get(), raw(address), address.size) != 0 && errno != EINPROGRESS && errno != EINTR) {
    return from_errno(errno, fmt::format("connect to {}", to_string(address)));
  }
  return fd;
}

Result<void> connect_result(int socket, const SocketAddress& to) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0 && is_to_itself(socket)) {
    const ::linger none{1, 0};  // with a reset, so that the port is free at once for who is to listen there
    (void)setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    error = ECONNREFUSED;
  }
  if (error != 0) return from_errno(error, fmt::format("connect to {}", to_string(to)));
  return {};
}

SocketAddress local_address(int socket) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return address;
}

SocketAddress peer_address(int socket) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return address;
}

void set_no_delay(int socket) {
  const int on = 1;
  (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // without it all works, later
}

void keep_alive(int socket, Duration silence) {
  const int on = 1, whole = std::max(static_cast<int>(silence / 1s), 3);
  const int idle = whole / 3, between = std::max(whole / 6, 1), count = (whole - idle) / between;
  (void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
  (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

// TCP_USER_TIMEOUT would end a connection to a peer that only does not read for so long. Of the probes of a window that
// is closed, which come up to two minutes apart, one may be lost.
bool is_unanswered(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  return info.tcpi_retransmits > 0 || info.tcpi_probes > 2;
}

void limit_unread(int socket, Bytes half) {
  const int size = static_cast<int>(half.value());  // the system doubles it, for what it keeps beside the bytes
  (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
}

StreamSocket adopt(boost::asio::io_context& loop, Fd socket, int family) {
  StreamSocket adopted{loop, boost::asio::generic::stream_protocol{family, 0},
                       socket.get()};  // where this throws, the descriptor is closed here
  (void)socket.give_up();
  return adopted;
}

}  // namespace elrun::inline v0
