#pragma once
/// \file Sockets that never leak into a child: close-on-exec from birth, non-blocking, addresses as values.

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

using StreamSocket = boost::asio::generic::stream_protocol::socket;

/// Where a socket is bound or connected. A value.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::string host() const;  ///< Numeric; the path of a Unix socket.
  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] bool is_loopback() const;
};

[[nodiscard]] std::string to_string(const SocketAddress& address);  ///< `10.0.0.1:29500`, `[::1]:29500`, `/run/a`, `@abstract`
[[nodiscard]] Result<SocketAddress> unix_address(const Path& path);
/// `10.0.0.1`, `::1`, `fe80::1%eth0`; nothing when it is a name.
[[nodiscard]] std::optional<SocketAddress> literal_address(const std::string& host, std::uint16_t port);
/// All addresses of a name or a literal, at least one, in the resolver's order. For a name it blocks as long as name
/// servers do. In names.cpp, and for a program without shared libraries in names_static.cpp.
[[nodiscard]] Result<std::vector<SocketAddress>> resolve(const std::string& host, std::uint16_t port);
using Resolver = std::function<Result<std::vector<SocketAddress>>(const std::string& host, std::uint16_t port)>;
[[nodiscard]] Failure name_does_not_resolve(const std::string& host, const char* why);

/// What happens with an address that this host does not have.
enum class NotOwn {
  refuse,     ///< It is a failure.
  any_of_it,  ///< All addresses of this host are listened at: what was asked for is that of a service, or behind a translator, and leads here.
};
[[nodiscard]] Result<Fd> listen_on(const SocketAddress& address, NotOwn not_own = NotOwn::refuse);
/// A waiting connection; nothing when there is none (any more).
[[nodiscard]] Result<std::optional<Fd>> accept_one(int listener);
/// Begins to connect; the socket becomes writable when it is decided, and `connect_result` tells how.
[[nodiscard]] Result<Fd> connect_begin(const SocketAddress& address);
/// A socket that has connected to itself has found nobody; closing it then leaves nothing behind.
[[nodiscard]] Result<void> connect_result(int socket, const SocketAddress& to);
[[nodiscard]] SocketAddress local_address(int socket);
[[nodiscard]] SocketAddress peer_address(int socket);
/// Small frames leave at once.
void set_no_delay(int socket);
/// While nothing is under way the system itself asks whether the peer's system is there, and ends the connection (ETIMEDOUT) when
/// that answered nothing for about `silence`. While something is, see `is_unanswered`.
void keep_alive(int socket, Duration silence);
/// Something was sent, and sent again, and the peer's system has not answered since. A peer that only does not read is
/// no such case, its system answers. False for what is no TCP.
[[nodiscard]] bool is_unanswered(int socket);
/// No more than about twice of this waits on its way to the peer, and none of the system's own ideas about it apply.
void limit_unread(int socket, Bytes half);
[[nodiscard]] StreamSocket adopt(boost::asio::io_context& loop, Fd socket, int family);

}  // namespace elrun::inline v0
