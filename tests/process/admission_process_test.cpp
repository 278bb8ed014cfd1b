// Who is admitted while thousands of connections that never authenticate want the same port. Real sockets, real processes.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/fd.hpp"
#include "rendezvous/net/node_link.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/outsiders.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool instrumented = true;  // each connection costs the coordinator several times as much
#else
constexpr bool instrumented = false;
#endif
constexpr std::size_t crowd = instrumented ? 1000 : 3000, crowd_with_signatures = instrumented ? 600 : 1000;

const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string settings{"\0\0\0\4\0\0\0\0\0", 9};
const std::string ping{"\0\0\x08\6\0\0\0\0\0elrunrun", 17};

struct Stage {
  boost::asio::io_context loop;
  SteadyClock clock;
  Timeouts timeouts;
  bool until(const std::function<bool()>& so) {
    const Instant end = clock.now() + 60s;  // only a failing test waits for so long
    while (!so()) {
      if (clock.now() > end) return false;
      loop.restart();
      loop.run_one_for(20ms);
    }
    return true;
  }
};

struct Node {
  Stage& stage;
  std::string name;
  std::vector<CoordinatorMessage> heard{};
  std::vector<std::string> down{};
  std::unique_ptr<NodeLink> link{};

  void connect(std::uint16_t port, const Access& access) {
    const NodeLink::Handler handler{.connected =
                                        [this] {
                                          Join message;
                                          message.who = {NodeId{name}, 1};
                                          message.run = RunId{"run"};
                                          message.version = "0.1.0";
                                          message.options = {.nodes_min = 2, .nodes_max = 2};
                                          message.address = "127.0.0.1";
                                          link->send(message);
                                        },
                                    .disconnected = [this](const Failure& why) { down.push_back(why.what); },
                                    .message = [this](const CoordinatorMessage& message) { heard.push_back(message); }};
    link = connect_to_coordinator(stage.loop, {"127.0.0.1", port}, stage.timeouts, 1, handler, access);
  }
  template <class T>
  [[nodiscard]] bool has() const {
    return std::any_of(heard.begin(), heard.end(), [](const auto& m) { return std::holds_alternative<T>(m); });
  }
};

// What a node sends first when it speaks TLS.
std::string client_hello(const Access& access) {
  const std::uint16_t port = free_port();
  const Fd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_port = htons(port);
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&here), sizeof here) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  Stage stage;
  Node node{stage, "node"};
  node.connect(port, access);
  pollfd comes{listener.get(), POLLIN, 0};
  REQUIRE(stage.until([&] { return ::poll(&comes, 1, 0) == 1; }));
  const Fd peer{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  char bytes[8192];
  const ssize_t size = ::recv(peer.get(), bytes, sizeof bytes, 0);
  REQUIRE(size > 0);
  return {bytes, static_cast<std::size_t>(size)};
}

}  // namespace

TEST_CASE("a node is admitted within seconds beside thousands of connections that never authenticate", "[admission][process][grpc]") {
  raise_descriptor_limit();
  const TemporaryDirectory directory;
  const CertificateAuthority authority{directory.path()};
  write_file(directory.path() + "/token", "nobody guesses this one");
  Access access;
  access.token_file = directory.path() + "/token";
  std::string conf = "token_file=" + access.token_file;
  OutsidersOptions habit{.connections = crowd};
  bool tls = false;
  const auto with_tls = [&] {
    const auto files = authority.sign("all", {"localhost", "127.0.0.1"});
    access.ca_file = files.ca, access.certificate_file = files.certificate, access.key_file = files.key;
    conf += ",cacert=" + files.ca + ",cert=" + files.certificate + ",key=" + files.key;
    tls = true;
  };
  SECTION("a byte of HTTP/2 at a time, from the node's own address") { habit.again = preface + settings + ping, habit.again_bytes = 1; }
  SECTION("a frame of HTTP/2 at a time, from the node's own address") { habit.first = preface + settings, habit.again = ping; }
  SECTION("a frame of HTTP/2 at a time, from 40 addresses") { habit.first = preface + settings, habit.again = ping, habit.addresses = 40; }
  SECTION("a byte of a ClientHello at a time") { with_tls(), habit.again = client_hello(access), habit.again_bytes = 1; }
  // Fewer: each one is a signature for the coordinator, and 3,000 of them again and again are work for a processor of its own.
  SECTION("a whole ClientHello, and then a byte at a time") {
    with_tls(), habit.connections = crowd_with_signatures, habit.first = client_hello(access),
                habit.again = std::string{"\x14\x03\x03\0\1\1\x17\x03\x03\x40\0", 11}, habit.again_bytes = 1;
  }
  SECTION("silence, from three addresses") { habit.addresses = 3; }

  habit.port = free_port();
  Job store{{.arguments = {"store", "--host", "127.0.0.1", "--port", std::to_string(habit.port), "--rdzv_conf", conf}}};
  REQUIRE(store.line("serving the rendezvous"));
  Stage stage;
  Node a{stage, "a"}, b{stage, "b"};
  for (Node* node : {&a, &b}) node->connect(habit.port, access);
  REQUIRE(stage.until([&] { return a.has<World>() && b.has<World>(); }));

  Outsiders outsiders{habit};
  REQUIRE(stage.until([&] { return outsiders.connected() >= habit.connections * 9 / 10; }));
  const Instant settled = stage.clock.now() + 2s;  // they hold every place by then
  REQUIRE(stage.until([&] { return stage.clock.now() >= settled; }));
  // Nodes that come one after the other: each is a spare.
  std::vector<double> took;
  for (int i = 0; i < 3; ++i) {
    Node late{stage, "late" + std::to_string(i)};
    const Instant begin = stage.clock.now();
    late.connect(habit.port, access);
    const bool admitted = stage.until([&] { return late.has<Waiting>(); });
    took.push_back(std::chrono::duration<double>(stage.clock.now() - begin).count());
    // The cause is named, and no other one.
    for (const std::string& why : late.down) CHECK_THAT(why, Contains("full of connections that never authenticate") && !Contains("TLS"));
    INFO("node " << i << ": " << took.back() << " s, told: " << (late.down.empty() ? "nothing" : late.down.back()));
    CHECK(admitted);
    if (!admitted) break;
  }
  std::sort(took.begin(), took.end());
  WARN("connections made: " << outsiders.made() << ", ended: " << outsiders.ended() << "; admitted after " << took.front() << " to "
                            << took.back() << " s");
  CHECK_FALSE(a.has<Revoke>());
  CHECK(store.line("turned away: connections that were not admitted in time while others waited"));
  CHECK_THAT(store.output(), Contains(" of 512 places)"));
}

}  // namespace elrun::test
