#include "launcher/host.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("the node that the endpoint leads to serves it", "[host]") {
  const Surroundings here{"node0", {"127.0.0.1", "10.0.0.1", "::1"}, {}};
  const auto place = [&](const char* host, std::vector<std::string> leads_to,
                         HostRule rule = HostRule::if_endpoint_is_here) {
    Surroundings s = here;
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
