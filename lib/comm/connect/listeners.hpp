#pragma once
/// \file Listeners: where a rank listens for the others of its group.

#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <elrun/result.hpp>

#include "lib/base/fd.hpp"
#include "lib/comm/connect/acceptor.hpp"
#include "lib/comm/connect/address.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

/// Identifies the running kernel; empty when the system does not tell. Two processes that read the same id and reach each other's abstract
/// sockets can share memory.
[[nodiscard]] std::string boot_of_host();

/// The Unix socket of this name (RankAddress::socket), in the kernel's memory and in no folder, so nothing stays behind.
[[nodiscard]] SocketAddress abstract_address(std::string_view name);

/// What a rank does with the address of its node: where it listens, and by what its peers find it.
struct ListenPlace {
  SocketAddress at;
  bool everywhere = false;  ///< At all addresses of this host, instead of `at`.
  std::string host;         ///< To be published.
};
/// `found`: what `address` leads to here, at least one. A name that leads to a loopback address alone (a host's own name, as Debian's installer sets it
/// up) leads to this host from elsewhere, and is published as a name; `localhost` and the loopback's other names are not.
[[nodiscard]] ListenPlace listen_place(const std::string& address, const std::vector<SocketAddress>& found);

/// A TCP port, and for ranks of the same host a Unix socket under a random name: nobody can guess it, and who learns it still has no key.
/// `open` on the caller's thread, before the loop runs; then `accept` and `close` on the loop's. Connections that come between the two wait.
class Listeners {
 public:
  explicit Listeners(boost::asio::io_context& loop) : tcp_acceptor_{loop}, unix_acceptor_{loop} {}
  /// `address`: of this node, as peers reach it. `with_unix`: also for ranks of this host; without effect where the system does not tell which
  /// kernel runs. Returns what the rank publishes.
  Result<RankAddress> open(const std::string& address, bool with_unix, const Resolver& resolver = resolve);
  /// Each connection that comes in is handed over from now on, while there is room.
  void accept(
      const Acceptor::Accepted& accepted, const Acceptor::HasRoom& has_room = [](int) { return true; });
  void close();

 private:
  Fd tcp_, unix_;  // until `accept`
  Acceptor tcp_acceptor_, unix_acceptor_;
};

}  // namespace elrun::inline v0
