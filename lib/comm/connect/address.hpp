#pragma once
/// \file What each rank publishes in the session's store so that its peers can connect to it. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

namespace elrun::inline v0 {

constexpr std::size_t host_size_max = 256;

struct RankAddress {
  std::uint16_t port = 0;
  std::string host;    ///< As peers reach it: numeric, or a name that leads to a loopback address on its own host.
  std::string boot;    ///< The kernel's boot id; empty: the system does not tell it.
  std::string socket;  ///< Name of an abstract Unix socket for ranks of the same host; empty: there is none. Only with a boot id.
};

/// `port host`, then the boot id and the socket's name where there are some.
[[nodiscard]] std::string encode(const RankAddress& address);
/// What `rank` has published. Everything is bounded and checked: `protocol` otherwise.
[[nodiscard]] Result<RankAddress> decode_rank_address(Rank rank, std::string_view text);

}  // namespace elrun::inline v0
