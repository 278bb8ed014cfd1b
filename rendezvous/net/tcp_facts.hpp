#pragma once
/// \file What the kernel knows about a TCP socket. A file of its own, because <linux/tcp.h> and <netinet/tcp.h> cannot both be
/// included.

#include <cstddef>
#include <cstdint>
#include <optional>

namespace elrun::inline v0 {

struct TcpFacts {
  bool is_open = false;              ///< The connection stands, though the peer may have finished sending.
  bool peer_is_done = false;         ///< The peer has finished sending.
  std::uint64_t bytes_received = 0;  ///< Since the connection was made, whether they were read or not.
};
/// Nothing when it is no TCP socket.
[[nodiscard]] std::optional<TcpFacts> tcp_facts(int socket);

/// Connections in a listening socket's backlog: made by the kernel, not accepted yet.
[[nodiscard]] std::size_t backlog_length(int listener);

}  // namespace elrun::inline v0
