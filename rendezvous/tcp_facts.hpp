#pragma once
/// \file What the system knows of a TCP connection. In a file of its own: the system has two headers for it, which do not go together.

#include <cstdint>
#include <optional>

namespace elrun::inline v0 {

struct TcpFacts {
  bool is_open = false;              ///< Neither side has given it up, though the other one may have said all it has to say.
  std::uint64_t bytes_received = 0;  ///< Since it was made, whether they were read or not.
};
/// Nothing when it is no TCP socket.
[[nodiscard]] std::optional<TcpFacts> tcp_facts(int socket);

}  // namespace elrun::inline v0
