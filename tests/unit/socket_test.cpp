// Sockets: what a connection and an address are taken for.

#include "lib/link/socket.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "tests/support/catch.hpp"

using namespace elrun;

TEST_CASE("a socket that has connected to itself has found nobody, and leaves the port to who is to listen there", "[socket]") {
  const SocketAddress any = resolve(GENERATE("127.0.0.1", "::1"), 0).value().front();
  Fd alone{::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const auto raw = [](const SocketAddress& address) { return reinterpret_cast<const sockaddr*>(&address.storage); };
  if (::bind(alone.get(), raw(any), any.size) != 0) return;  // a host without IPv6
  const SocketAddress own = local_address(alone.get());
  REQUIRE((::connect(alone.get(), raw(own), own.size) == 0 || errno == EINPROGRESS));
  pollfd decided{alone.get(), POLLOUT, 0};
  REQUIRE(::poll(&decided, 1, 20000) == 1);
  const auto result = connect_result(alone.get(), own);
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(result.failure().what, Catch::Contains("connect to " + to_string(own)) && Catch::Contains("refused"));
  CHECK_FALSE(listen_on(own).ok());  // as long as it is there
  alone = Fd{};
  CHECK(listen_on(own).ok());
}

TEST_CASE("an address is told as tools of the system tell it", "[socket]") {
  CHECK(to_string(resolve("127.0.0.1", 80).value().front()) == "127.0.0.1:80");
  CHECK(to_string(resolve("::1", 80).value().front()) == "[::1]:80");
  CHECK(to_string(unix_address("/run/agent").value()) == "/run/agent");
  CHECK(to_string(SocketAddress{}).find('@') == std::string::npos);
  SocketAddress abstract;  // its name has no end but that of the address
  auto& un = reinterpret_cast<sockaddr_un&>(abstract.storage);
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path + 1, "elrun-0f", 8);
  abstract.size = offsetof(sockaddr_un, sun_path) + 1 + 8;
  CHECK(to_string(abstract) == "@elrun-0f");
}

TEST_CASE("a socket that has connected to a listener of its own host has found it", "[socket]") {
  const Fd listener = listen_on(resolve("127.0.0.1", 0).value().front()).value();
  const SocketAddress there = local_address(listener.get());
  const Fd socket = connect_begin(there).value();
  pollfd decided{socket.get(), POLLOUT, 0};
  REQUIRE(::poll(&decided, 1, 20000) == 1);
  CHECK(connect_result(socket.get(), there).ok());
}
