// Whether a process has ended, as its host says: real sockets of the loopback.
#include <sys/socket.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "lib/base/clock.hpp"
#include "lib/link/socket.hpp"
#include "rendezvous/net/admission_watch.hpp"
#include "rendezvous/net/liveness.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;

namespace {

constexpr Duration forever = 300s;  // only a failing test waits for so long

/// Until the handlers of all questions have run: a question that is over keeps the loop no longer.
int answers_of(const LivenessPort& port, Duration patience, const std::function<void(boost::asio::io_context&)>& meanwhile = {}) {
  boost::asio::io_context loop;
  LivenessQuestions questions{loop, patience};
  int answers = 0;
  questions.ask(port, [&] { ++answers; });
  CHECK(answers == 0);  // later, on the loop
  if (meanwhile) meanwhile(loop);
  loop.run();
  return answers;
}

}  // namespace

TEST_CASE("a port is the same at each call, and there is none at an address that is not this host's", "[liveness]") {
  LivenessPorts ports;
  const auto port = ports.at("127.0.0.1");
  REQUIRE(port);
  CHECK(port->address == "127.0.0.1");
  CHECK(port->port != 0);
  CHECK(ports.at("127.0.0.1") == port);
  CHECK_FALSE(ports.at(""));
  CHECK_FALSE(ports.at("a name"));
  CHECK_FALSE(ports.at("192.0.2.1"));
}

TEST_CASE("a process may be asked at a bounded number of addresses", "[liveness]") {
  LivenessPorts ports;
  for (std::size_t i = 0; i < liveness_ports_max; ++i) REQUIRE(ports.at("127.0.0." + std::to_string(1 + i)));
  CHECK_FALSE(ports.at("127.0.0.99"));
  CHECK(ports.at("127.0.0.1"));
}

TEST_CASE("a host says that a process has ended", "[liveness]") {
  std::optional<LivenessPorts> ports{std::in_place};
  const LivenessPort port = *ports->at("127.0.0.1");
  SECTION("by refusing the connection") {
    ports.reset();
    CHECK(answers_of(port, forever) == 1);
  }
  SECTION("by a reset of one that waited") {
    const bool is_seen_to_wait = GENERATE(false, true);
    CAPTURE(is_seen_to_wait);
    CHECK(answers_of(port, forever, [&](boost::asio::io_context& loop) {
            if (is_seen_to_wait) loop.poll();
            ports.reset();
          }) == 1);
  }
}

TEST_CASE("a host says nothing of a process that lives, whoever else asks", "[liveness]") {
  LivenessPorts ports;
  const LivenessPort port = *ports.at("127.0.0.1");
  std::vector<Fd> others;
  SECTION("alone") {}
  SECTION("where connections of others fill the queue") {
    for (int i = 0; i < 4 * liveness_backlog; ++i) {
      auto other = connect_begin(*literal_address("127.0.0.1", port.port));
      REQUIRE(other.ok());
      others.push_back(std::move(*other));
    }
  }
  CHECK(answers_of(port, 100ms) == 0);
}

TEST_CASE("what another program at that port does is no answer", "[liveness]") {
  const bool speaks = GENERATE(true, false);  // or it ends the connection in order
  CAPTURE(speaks);
  auto listener = listen_on(*literal_address("127.0.0.1", 0));
  REQUIRE(listener.ok());
  const LivenessPort port{"127.0.0.1", local_address(listener->get()).port()};
  std::optional<Fd> taken;
  CHECK(answers_of(port, forever, [&](boost::asio::io_context&) {
          while (!taken) taken = *accept_one(listener->get());
          if (speaks) REQUIRE(::send(taken->get(), "x", 1, MSG_NOSIGNAL) == 1);
          else *taken = Fd{};
        }) == 0);
}

TEST_CASE("who asked may be gone when the answer comes", "[liveness]") {
  std::optional<LivenessPorts> ports{std::in_place};
  const LivenessPort port = *ports->at("127.0.0.1");
  boost::asio::io_context loop;
  int answers = 0;
  {
    LivenessQuestions questions{loop, 300s};
    questions.ask(port, [&] { ++answers; });
    ports.reset();
    questions.ask(port, [&] { ++answers; });
  }
  loop.run();
  CHECK(answers == 0);
}

TEST_CASE("questions under way are bounded", "[liveness]") {
  std::optional<LivenessPorts> ports{std::in_place};
  const LivenessPort port = *ports->at("127.0.0.1");
  boost::asio::io_context loop;
  LivenessQuestions questions{loop, 300s};
  std::size_t answers = 0;
  for (std::size_t i = 0; i < liveness_questions_max + 10; ++i) questions.ask(port, [&] { ++answers; });
  ports.reset();
  loop.run();
  CHECK(answers <= liveness_questions_max);
  CHECK(answers > 0);
  questions.ask(port, [&] { ++answers; });  // those that are over do not count
  const std::size_t before = answers;
  loop.restart();
  loop.run();
  CHECK(answers == before + 1);
}

TEST_CASE("the address of a peer is written as the peer itself writes it", "[liveness]") {
  CHECK(plain_host("ipv4:10.0.0.1:29500") == "10.0.0.1");
  CHECK(plain_host("ipv6:%5B::1%5D:29500") == "::1");
  CHECK(plain_host("ipv6:[::ffff:10.0.0.1]:29500") == "10.0.0.1");
  CHECK(plain_host("ipv6:%5Bfe80::1%25eth0%5D:29500") == "fe80::1%eth0");
}
