// Names by the system's own resolver, with all that its administrator has set up (NSS).
#include <netdb.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

Result<std::vector<SocketAddress>> resolve(const std::string& host, std::uint16_t port) {
  if (auto literal = literal_address(host, port)) return std::vector{*literal};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    return name_does_not_resolve(host, error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner{found, &freeaddrinfo};
  std::vector<SocketAddress> addresses;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    address.size = a->ai_addrlen;
  }
  return addresses;  // never empty: the resolver reports a name without addresses as an error
}

}  // namespace elrun::inline v0
