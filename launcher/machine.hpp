#pragma once
/// \file Machine: what this machine has and is called. Reads the system, decides nothing.

#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.hpp"
#include "launcher/numa.hpp"
#include "launcher/options.hpp"

namespace elrun::inline v0::launcher {

[[nodiscard]] Machine this_machine(const Variables& environment);
[[nodiscard]] NumaView this_numa();
constexpr std::size_t small_file_max = 1 << 20;
/// The text of a file, of a large one its beginning; none when it cannot be read.
[[nodiscard]] std::optional<std::string> read_small_file(const std::string& path);
[[nodiscard]] FoundFile look_up_file(const std::string& path);
[[nodiscard]] std::string host_name();
/// A TCP port other than `but_not` that nobody listens on at this moment; 0 when there is none.
[[nodiscard]] std::uint16_t free_port(std::uint16_t but_not);

/// The addresses of this machine's interfaces, as text.
[[nodiscard]] std::vector<std::string> own_addresses();
/// The addresses that a name leads to now, as text; empty when it does not resolve. May wait for the resolver, as long
/// as its own configuration says (/etc/resolv.conf); a numeric address or `localhost` never does.
[[nodiscard]] std::vector<std::string> addresses_of(const std::string& host);

}  // namespace elrun::inline v0::launcher
