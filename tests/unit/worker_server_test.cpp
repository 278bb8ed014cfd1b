// Where a server of workers is reached.

#include <poll.h>

#include <boost/asio/io_context.hpp>

#include "lib/link/server.hpp"
#include "lib/link/socket.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {

TEST_CASE("a worker that knows only one of the addresses of rank 0's name reaches it", "[session]") {
  boost::asio::io_context loop;
  const std::uint16_t port = free_port();
  std::vector<SocketAddress> addresses;
  for (const char* address : {"127.0.0.1", "192.0.2.1", "127.0.0.2", "127.0.0.1"})  // one is of no host, one is there twice
    addresses.push_back(literal_address(address, port).value());
  const auto server = WorkerServer::listen_tcp(loop, addresses, {[](auto, const Message&) {}, [](auto, const Failure&) {}});
  REQUIRE(server.ok());
  CHECK((*server)->port() == port);
  CHECK((*server)->is_loopback());
  for (const char* address : {"127.0.0.1", "127.0.0.2"}) {
    const SocketAddress known = literal_address(address, port).value();
    const Fd socket = connect_begin(known).value();
    pollfd ready{socket.get(), POLLOUT, 0};
    REQUIRE(::poll(&ready, 1, 10'000) == 1);
    CHECK(connect_result(socket.get(), known).ok());
  }
}

}  // namespace elrun::test
