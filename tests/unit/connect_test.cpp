// What is decided while ranks connect and when they are lost, and where a rank listens.

#include <future>
#include <string>
#include <tuple>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "lib/base/printable.hpp"
#include "lib/comm/call_monitor.hpp"
#include "lib/comm/connect/address.hpp"
#include "lib/comm/connect/listeners.hpp"
#include "lib/comm/connect/loss_policy.hpp"
#include "lib/comm/connect/peer_names.hpp"
#include "lib/comm/connect/peer_states.hpp"
#include "lib/comm/shm/local_peers.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/manual_clock.hpp"

using namespace elrun;

TEST_CASE("a rank's address comes out as it went in", "[connect]") {
  for (const RankAddress& address : {RankAddress{29500, "10.0.0.1", "", ""}, RankAddress{1, "::1", "4f9d", ""},
                                     RankAddress{65535, "fe80::1%eth0", "4f9d-11", "elrun-00ff"}}) {
    const RankAddress got = decode_rank_address(Rank{3}, encode(address)).value();
    CHECK(got.port == address.port);
    CHECK(got.host == address.host);
    CHECK(got.boot == address.boot);
    CHECK(got.socket == address.socket);
  }
  CHECK(encode({29500, "10.0.0.1", "4f9d", "elrun-00ff"}) == "29500 10.0.0.1 4f9d elrun-00ff");  // other versions read it
  CHECK(encode({29500, "10.0.0.1", "", "elrun-00ff"}) == "29500 10.0.0.1");  // without a boot id nobody may use the socket
}

TEST_CASE("what is no address names the rank that published it, and is bounded", "[connect]") {
  for (const std::string text : {"", "29500", "0 host", "65536 host", "-1 host", "x host",
                                 "1 ho\xc2\x9b"
                                 "st",
                                 "1 ho\x1bst"}) {
    CAPTURE(text);
    const auto got = decode_rank_address(Rank{3}, text);
    REQUIRE(!got.ok());
    CHECK(got.failure().code == Code::protocol);
    CHECK(got.failure().peer == Rank{3});
    CHECK(printable(got.failure().what) == got.failure().what);
  }
  CHECK(decode_rank_address(Rank{3}, std::string(1 << 20, 'x')).failure().what.size() < 1000);
  const RankAddress cut = decode_rank_address(Rank{3}, "1 " + std::string(2000, 'h')).value();
  CHECK(cut.host.size() == 256);
}

TEST_CASE("a peer's states follow their table and no other way", "[connect]") {
  using enum PeerState;
  const std::vector<std::pair<PeerState, PeerState>> allowed{
      {absent, reached}, {reached, reached}, {absent, connected}, {reached, connected}, {connected, lost}};
  for (const PeerState from : {absent, reached, connected, lost})
    for (const PeerState to : {absent, reached, connected, lost})
      CHECK(may_follow(from, to) == (std::ranges::find(allowed, std::pair{from, to}) != allowed.end()));
}

TEST_CASE("a group is complete when every other rank has connected, also if one is lost again", "[connect]") {
  PeerStates states{Rank{1}, WorldSize{3}};
  CHECK(states.missing() == std::vector{Rank{0}, Rank{2}});
  states.enter(Rank{0}, PeerState::reached);
  CHECK(states.missing() == std::vector{Rank{0}, Rank{2}});
  states.enter(Rank{0}, PeerState::connected);
  states.enter(Rank{0}, PeerState::lost);
  CHECK(states.missing() == std::vector{Rank{2}});
  states.enter(Rank{2}, PeerState::connected);
  CHECK(states.missing().empty());
}

TEST_CASE("the peer that a call misses is blamed, with how its connection ended", "[connect]") {
  LossPolicy policy{WorldSize{4}};
  policy.ended(Rank{2}, ConnectionEnd::closed);
  CHECK(policy.is_lost(Rank{2}));
  CHECK_FALSE(policy.is_lost(Rank{1}));
  CHECK(policy.missed(Rank{2}));
  CHECK(policy.blame().code == Code::peer_lost);
  CHECK(policy.blame().peer == Rank{2});
  CHECK_THAT(policy.blame().what, Catch::Contains("rank 2 is gone: it closed the connection"));
}

TEST_CASE("the system's words are told where a connection broke", "[connect]") {
  LossPolicy policy{WorldSize{2}};
  policy.ended(Rank{1}, ConnectionEnd::broken, "Connection reset by peer");
  policy.ended(Rank{1}, ConnectionEnd::closed);  // the first report counts
  CHECK(policy.missed(Rank{1}));
  CHECK_THAT(policy.blame().what, Catch::Contains("rank 1 is gone: Connection reset by peer"));
}

TEST_CASE("only the first peer that a call misses begins the grace", "[connect]") {
  LossPolicy policy{WorldSize{4}};
  policy.ended(Rank{3}, ConnectionEnd::closed);
  CHECK(policy.missed(Rank{3}));
  policy.ended(Rank{2}, ConnectionEnd::closed);
  CHECK_FALSE(policy.missed(Rank{2}));
  CHECK(policy.blame().peer == Rank{3});
}

TEST_CASE("a peer that gave up a call is not blamed where another was lost first", "[connect]") {
  LossPolicy policy{WorldSize{4}};
  const Failure gave_up{.code = Code::peer_lost, .what = "rank 1 has given up the call", .peer = Rank{1}};
  CHECK(policy.missed(Rank{1}, gave_up));
  CHECK(policy.blame().what == gave_up.what);  // nobody else is known to be lost
  policy.ended(Rank{3}, ConnectionEnd::closed);
  CHECK(policy.blame().peer == Rank{3});  // it came within the grace
}

TEST_CASE("a peer that does not answer is given up after its last look, and answers count", "[connect]") {
  LossPolicy policy{WorldSize{3}};
  for (std::uint32_t i = 1; i < looks_max; ++i) CHECK_FALSE(policy.looked(Rank{1}, true));
  CHECK_FALSE(policy.looked(Rank{1}, false));  // it answered: counting begins anew
  for (std::uint32_t i = 1; i < looks_max; ++i) CHECK_FALSE(policy.looked(Rank{1}, true));
  CHECK(policy.looked(Rank{1}, true));
  policy.ended(Rank{1}, ConnectionEnd::silent);
  CHECK(policy.missed(Rank{1}));
  CHECK(policy.blame().code == Code::unreachable);
  CHECK(policy.blame().peer == Rank{1});
}

TEST_CASE("a rank that others cannot reach either is blamed, not the one that gave up because of it", "[connect]") {
  const bool suspected = GENERATE(false, true);
  LossPolicy policy{WorldSize{4}};
  for (std::uint32_t i = 0; i < looks_of_suspicion - (suspected ? 0 : 1); ++i) CHECK_FALSE(policy.looked(Rank{3}, true));
  policy.ended(Rank{1}, ConnectionEnd::closed);
  CHECK(policy.missed(Rank{1}));
  CHECK(policy.blame().peer == (suspected ? Rank{3} : Rank{1}));
  CHECK(policy.blame().code == (suspected ? Code::unreachable : Code::peer_lost));
}

TEST_CASE("a call ends when its part in frames is over", "[connect]") {
  CallMonitor monitor;
  monitor.set_connected();
  REQUIRE(monitor.wait_until_connected().ok());
  REQUIRE(monitor.begin(false).ok());
  CHECK(monitor.wait_for_end(true).ok());  // nothing goes through frames
  REQUIRE(monitor.begin(true).ok());
  auto ends = std::async(std::launch::async, [&] { monitor.end(true); });
  CHECK(monitor.wait_for_end(true).ok());
}

TEST_CASE("a call through memory that failed waits for the group's failure, which the communication thread finds", "[connect]") {
  CallMonitor monitor;
  REQUIRE(monitor.begin(false).ok());
  auto judges = std::async(std::launch::async, [&] {
    (void)monitor.fail({.code = Code::peer_lost, .what = "rank 1 is gone"});
    monitor.wake();
  });
  CHECK(monitor.wait_for_end(false).failure().what == "rank 1 is gone");
}

TEST_CASE("the first failure of a group stays, and ends all calls after it", "[connect]") {
  CallMonitor monitor;
  REQUIRE(monitor.begin(true).ok());
  CHECK(monitor.fail({.code = Code::generation_over, .what = "first"}));
  CHECK_FALSE(monitor.fail({.code = Code::peer_lost, .what = "second"}));
  monitor.end(false);
  CHECK(monitor.wait_for_end(true).failure().what == "first");
  CHECK(monitor.begin(false).failure().what == "first");
  CHECK(monitor.wait_until_connected().failure().what == "first");
}

TEST_CASE("a call that was over before the group failed has succeeded", "[connect]") {
  CallMonitor monitor;
  REQUIRE(monitor.begin(true).ok());
  monitor.end(true);
  (void)monitor.fail({.code = Code::generation_over, .what = "later"});
  CHECK(monitor.wait_for_end(true).ok());
}

TEST_CASE("a rank listens on TCP, and on a Unix socket where ranks of its host may use one", "[connect]") {
  boost::asio::io_context loop;
  Listeners listeners{loop};
  const bool with_unix = GENERATE(true, false);
  const RankAddress mine = listeners.open("127.0.0.1", with_unix).value();
  CHECK(mine.host == "127.0.0.1");
  CHECK(mine.port > 0);
  CHECK(mine.socket.empty() == (!with_unix || mine.boot.empty()));
  CHECK(mine.socket.find('/') == std::string::npos);

  // Connections that come before `accept` wait; each is handed over with its family.
  std::vector<Fd> dialled;
  dialled.push_back(connect_begin(resolve("127.0.0.1", mine.port).value().front()).value());
  if (!mine.socket.empty()) dialled.push_back(connect_begin(abstract_address(mine.socket)).value());
  std::vector<int> families;
  listeners.accept([&](Fd, int family) { families.push_back(family); });
  while (families.size() < dialled.size()) loop.run_one_for(std::chrono::seconds{20});
  std::ranges::sort(families);
  CHECK(families == (mine.socket.empty() ? std::vector{AF_INET} : std::vector{AF_UNIX, AF_INET}));

  listeners.close();
  loop.restart();
  loop.run();  // nothing is left to wait for
  if (!mine.socket.empty()) CHECK_FALSE(connect_begin(abstract_address(mine.socket)).ok());
}

TEST_CASE("a host name that leads to the loopback on its own host is published as it is, and all addresses are listened at", "[connect]") {
  const auto found = [](std::vector<std::string> hosts) {
    std::vector<SocketAddress> addresses;
    for (const std::string& host : hosts) addresses.push_back(literal_address(host, 0).value());
    return addresses;
  };
  const auto place = [&](const std::string& address, std::vector<std::string> hosts) {
    const ListenPlace got = listen_place(address, found(std::move(hosts)));
    return std::tuple{got.at.host(), got.everywhere, got.host};
  };
  CHECK(place("10.0.0.1", {"10.0.0.1"}) == std::tuple{"10.0.0.1", false, "10.0.0.1"});
  CHECK(place("127.0.0.1", {"127.0.0.1"}) == std::tuple{"127.0.0.1", false, "127.0.0.1"});
  CHECK(place("localhost", {"::1", "127.0.0.1"}) == std::tuple{"::1", false, "::1"});
  for (const std::string name :
       {"localhost.localdomain", "localhost4", "localhost6", "localhost6.localdomain6", "ip6-localhost", "ip6-loopback"})
    CHECK(place(name, {"::1"}) == std::tuple{"::1", false, "::1"});
  CHECK(place("localhost0", {"127.0.1.1"}) == std::tuple{"127.0.1.1", true, "localhost0"});
  CHECK(place("node0", {"10.0.0.1"}) == std::tuple{"10.0.0.1", false, "10.0.0.1"});
  CHECK(place("node0", {"127.0.1.1", "10.0.0.1"}) == std::tuple{"10.0.0.1", false, "10.0.0.1"});
  CHECK(place("node0", {"127.0.1.1"}) == std::tuple{"127.0.1.1", true, "node0"});
  CHECK(place("node0", {"::1", "127.0.1.1"}) == std::tuple{"::1", true, "node0"});

  boost::asio::io_context loop;
  Listeners listeners{loop};
  const auto debian = [&](const std::string&, std::uint16_t) { return Result{found({"127.0.1.1"})}; };
  const RankAddress mine = listeners.open("node0", false, debian).value();
  CHECK(mine.host == "node0");
  std::size_t heard = 0;
  listeners.accept([&](Fd, int) { ++heard; });
  const Fd as_here = connect_begin(literal_address("127.0.1.1", mine.port).value()).value();
  const Fd as_elsewhere =
      connect_begin(literal_address("127.0.0.9", mine.port).value()).value();  // an address that the name does not lead to here
  while (heard < 2) REQUIRE(loop.run_one_for(std::chrono::seconds{20}) > 0);

  Listeners of_long_name{loop};
  const auto refused = of_long_name.open(std::string(host_size_max + 1, 'n'), false, debian);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.failure().what.find("more than 256 bytes") != std::string::npos);
}

TEST_CASE("each name that peers have published is looked up once, and its time is the deadline's", "[connect]") {
  ManualClock clock;
  std::vector<std::string> asked;
  const auto slow = [&](const std::string& host, std::uint16_t port) {
    asked.push_back(host);
    clock.advance(std::chrono::seconds{4});
    return Result{std::vector{literal_address("10.0.0.1", port).value(), literal_address("fd00::1", port).value()}};
  };
  PeerNames names{clock, Deadline::after(clock.now(), std::chrono::seconds{10}), slow};
  const auto texts = [&](const RankAddress& peer) {
    std::vector<std::string> all;
    const auto found = names.find(peer).value();
    for (const SocketAddress& each : found) all.push_back(to_string(each));
    return all;
  };
  CHECK(texts({1, "node0", "", ""}) == std::vector<std::string>{"10.0.0.1:1", "[fd00::1]:1"});
  CHECK(texts({2, "node0", "", ""}) == std::vector<std::string>{"10.0.0.1:2", "[fd00::1]:2"});
  CHECK(texts({3, "10.0.0.7", "", ""}) == std::vector<std::string>{"10.0.0.7:3"});
  CHECK(names.find({4, "node1", "", ""}).ok());
  CHECK(asked == std::vector<std::string>{"node0", "node1"});
  const auto late = names.find({5, "node2", "", ""});
  REQUIRE_FALSE(late.ok());
  CHECK(late.failure().code == Code::deadline_passed);
  CHECK(late.failure().what == "the time to connect was over when the host name \"node2\" had been looked up, which took 4 s");
}

TEST_CASE("the bytes of a call travel through memory, in frames, or both ways, as its peers are reached", "[connect]") {
  LocalPeers local{{Generation{1, {{5, 6}}}, Rank{1}, WorldSize{3}}};
  const auto ways = [&](std::optional<Rank> whom) {
    const LocalPeers::Ways by = local.ways_to(whom);
    return std::pair{by.memory, by.frames};
  };
  CHECK(ways({}) == std::pair{false, true});
  CHECK_FALSE(local.are_all());
  local.lose(Rank{0});  // has no lanes
  local.set_lanes(Lanes::make({Generation{1, {{5, 6}}}, Rank{1}, WorldSize{3}}, {Rank{0}, Rank{1}, Rank{2}}).value());
  local.add(Rank{0});
  CHECK(ways({}) == std::pair{true, true});
  CHECK(ways(Rank{0}) == std::pair{true, false});
  CHECK(ways(Rank{2}) == std::pair{false, true});
  CHECK_FALSE(local.are_all());
  local.add(Rank{2});
  CHECK(ways({}) == std::pair{true, false});
  CHECK(local.are_all());
  local.end();
  const std::vector<SendList> sends(3);
  const std::vector<ReceiveList> receives(3);
  CHECK(local.lanes()->transfer(sends, receives, {}, 60s).failure().code == Code::generation_over);
}

TEST_CASE("a group without lanes has no peers to be reached through memory", "[connect]") {
  LocalPeers alone{{Generation{1, {{5, 6}}}, Rank{0}, WorldSize{1}}};
  alone.set_lanes(nullptr);
  CHECK_FALSE(alone.ways_to({}).memory);
  CHECK_FALSE(alone.ways_to({}).frames);
  CHECK_FALSE(alone.are_all());
  alone.end();
}
