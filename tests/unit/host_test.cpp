#include "launcher/options/host.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("the node that the endpoint leads to serves it", "[host]") {
  const HostFacts here{"node0", {"127.0.0.1", "10.0.0.1", "::1"}, {}};
  const auto place = [&](const char* host, std::vector<std::string> leads_to, HostRule rule = HostRule::if_endpoint_is_here) {
    HostFacts s = here;
    s.leads_to = std::move(leads_to);
    return host_place({host, 29400}, rule, s);
  };
  CHECK(place("10.0.0.1", {"10.0.0.1"}) == HostPlace{"0.0.0.0", "10.0.0.1"});
  CHECK(place("node0", {"10.0.0.9", "10.0.0.1"}) == HostPlace{"0.0.0.0", "10.0.0.1"});
  CHECK_FALSE(place("node1", {"10.0.0.2"}));

  SECTION("a loopback endpoint is served on the loopback alone") {
    CHECK(place("localhost", {"127.0.0.1"}) == HostPlace{"127.0.0.1", "127.0.0.1"});
    CHECK(place("127.0.0.1", {"127.0.0.1"}) == HostPlace{"127.0.0.1", "127.0.0.1"});
    CHECK(place("::1", {"::1"}) == HostPlace{"::1", "::1"});
  }
  SECTION("a name that does not resolve yet is ours if it begins with our own") {
    CHECK(place("node0.jobs.svc", {}) == HostPlace{"0.0.0.0", "node0.jobs.svc"});
    CHECK_FALSE(place("node1.jobs.svc", {}));
  }
  SECTION("our name that leads to the loopback, as Debian sets it up, is told to others by name") {
    CHECK(place("node0", {"127.0.1.1"}) == HostPlace{"0.0.0.0", "node0"});
  }
  SECTION("a rule beats addresses") {
    CHECK_FALSE(place("10.0.0.1", {"10.0.0.1"}, HostRule::never));
    CHECK(place("service", {"10.96.0.7"}, HostRule::always) == HostPlace{"0.0.0.0", "service"});
  }
}

TEST_CASE("the agent that comes after another one says the same place, and no other host does", "[host]") {
  const AgentPlace place{RunId{"job"}, "5f1b6f0c-8d0e-4a52-9c39-d7c1a4a7e3c1", "trainer-0", 0};
  const std::string said = place_of_agent(place);
  CHECK(said.size() == 32);
  CHECK(place_of_agent(place) == said);
  AgentPlace other = place;
  SECTION("another agent on this host") { other.node_rank = 1; }
  SECTION("another pod on this machine") { other.host = "trainer-1"; }
  SECTION("another machine, or this one after a boot") { other.boot.back() = '2'; }
  SECTION("another job") { other.run = RunId{"other"}; }
  CHECK(place_of_agent(other) != said);
  CHECK_FALSE(place_of_agent(other).empty());
  // Without a secret of the machine anybody could say it.
  other.boot.clear();
  CHECK(place_of_agent(other).empty());
}
