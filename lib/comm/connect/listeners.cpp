#include "lib/comm/connect/listeners.hpp"

#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

// At both kinds of addresses, where the host has both: peers may resolve the name to either.
Result<Fd> listen_everywhere() {
  auto both = listen_on(*literal_address("::", 0));
  return both.ok() ? std::move(both) : listen_on(*literal_address("0.0.0.0", 0));
}

// The names that systems give the loopback in /etc/hosts. With a domain too: localhost.localdomain.
bool is_of_loopback(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('.'));
  constexpr std::array<std::string_view, 5> names{"localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"};
  return std::ranges::find(names, first) != names.end();
}

}  // namespace

std::string boot_of_host() {
  std::string id;
  std::ifstream{"/proc/sys/kernel/random/boot_id"} >> id;
  return id.size() <= 40 ? id : std::string{};
}

SocketAddress abstract_address(std::string_view name) {
  SocketAddress address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  ELRUN_ASSERT(name.size() + 1 < sizeof un.sun_path);
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

ListenPlace listen_place(const std::string& address, const std::vector<SocketAddress>& found) {
  const auto elsewhere = std::find_if(found.begin(), found.end(), [](const SocketAddress& a) { return !a.is_loopback(); });
  const SocketAddress& at = elsewhere != found.end() ? *elsewhere : found.front();
  const bool is_name = !is_of_loopback(address) && !literal_address(address, 0);
  const bool everywhere = is_name && at.is_loopback();
  return {at, everywhere, everywhere ? address : at.host()};
}

Result<RankAddress> Listeners::open(const std::string& address, bool with_unix, const Resolver& resolver) {
  ELRUN_TRY_ASSIGN(const auto addresses, resolver(address, 0));
  const ListenPlace place = listen_place(address, addresses);
  if (place.host.size() > host_size_max) return invalid(fmt::format("the host name \"{}\" has more than {} bytes", address, host_size_max));
  ELRUN_TRY_ASSIGN(tcp_, place.everywhere ? listen_everywhere() : listen_on(place.at, NotOwn::any_of_it));
  // As peers reach this rank: a listener on all addresses does not know it.
  RankAddress mine{.port = local_address(tcp_.get()).port(), .host = place.host, .boot = boot_of_host(), .socket = {}};
  if (mine.boot.empty() || !with_unix) return mine;
  std::array<std::byte, 16> bits{};
  random_bytes(bits);
  const std::string name = "elrun-" + to_hex(bits);
  if (auto opened = listen_on(abstract_address(name)); opened.ok()) {
    unix_ = std::move(*opened);
    mine.socket = name;
  }
  return mine;
}

void Listeners::accept(const Acceptor::Accepted& accepted, const Acceptor::HasRoom& has_room) {
  tcp_acceptor_.open(std::move(tcp_), accepted, has_room);
  if (unix_) unix_acceptor_.open(std::move(unix_), accepted, has_room);
}

void Listeners::close() {
  tcp_acceptor_.close();
  unix_acceptor_.close();
}

}  // namespace elrun::inline v0
