// `elrun store` alone, as a real process that is told to go: how it ends, and what its clients see.
#include <csignal>
#include <future>
#include <string>

#include <elrun/store.hpp>

#include "lib/base/bytes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

constexpr Duration patience = 60s;  // only a failing test waits for so long

}  // namespace

TEST_CASE("a store that gets SIGTERM ends with 143, and its clients' calls fail by their deadlines", "[launcher][process][grpc]") {
  Job served{{.arguments = {"store", "--host", "127.0.0.1", "--port", "0"}}};
  const auto line = served.line("serving the rendezvous");
  REQUIRE(line);
  const std::size_t at = line->find("127.0.0.1:");
  REQUIRE(at != std::string::npos);
  const std::string endpoint = line->substr(at, line->find_first_not_of("0123456789.:", at) - at);

  const auto client = connect_store(endpoint, {}, deadline_in(patience));
  REQUIRE(client.ok());
  REQUIRE((*client)->set("k", as_bytes("one"), deadline_in(patience)).ok());
  auto waiting = std::async(std::launch::async, [&] { return (*client)->get("nobody sets this", deadline_in(2s)); });

  served.signal(SIGTERM);
  CHECK(served.wait() == 128 + SIGTERM);
  CHECK(served.says("SIGTERM: the rendezvous ends; exit code 143"));
  REQUIRE(waiting.wait_for(patience) == std::future_status::ready);
  const auto waited = waiting.get();
  const auto after = (*client)->get("k", deadline_in(1s));
  for (const auto* result : {&waited, &after}) {  // another store may come back at this address, so a client tries until its deadline
    REQUIRE_FALSE(result->ok());
    CHECK_THAT(message(result->failure()), Catch::Matchers::Contains("no answer from the store at " + endpoint));
  }
}

}  // namespace elrun::test
