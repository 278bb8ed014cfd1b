// Which connection gives up its place: the rules, and a model of floods in which a node has to get in.
#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "rendezvous/net/admission.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

Instant at(Duration since_the_start) { return Instant{} + 1000s + since_the_start; }

}  // namespace

TEST_CASE("a connection keeps its place until others wait and it is old enough", "[admission]") {
  AdmissionPlaces places{{.places = 2}};
  Rng rng{1};
  const auto a = places.accepted("10.0.0.1", at(0s));
  CHECK_FALSE(places.is_full());
  const auto b = places.accepted("10.0.0.1", at(100ms));
  CHECK(places.is_full());
  CHECK(places.age_max(1, at(1s)) == 2s);
  CHECK(places.age_max(4, at(1s)) == 1s);
  CHECK(places.age_max(10'000, at(1s)) == 250ms);
  CHECK_FALSE(places.to_end(1, at(1999ms), rng));
  CHECK(places.to_end(1, at(2s), rng) == a);
  CHECK_FALSE(places.to_end(10'000, at(249ms), rng));
  CHECK(places.to_end(10'000, at(250ms), rng) == a);
  SECTION("one that waits for this process itself is not ended, and its age begins when it waits no more") {
    places.waits_for_grpc(a);
    CHECK(places.to_end(1, at(3s), rng) == b);
    places.handed_to_grpc(a, at(3s));
    places.gone(b);
    CHECK_FALSE(places.to_end(1, at(4999ms), rng));
    CHECK(places.to_end(1, at(5s), rng) == a);
  }
  SECTION("one on which somebody was admitted is never ended, and one that is closed neither") {
    places.admitted(a, at(1s));
    places.gone(b);
    CHECK(places.size() == 0);
    CHECK_FALSE(places.to_end(10'000, at(100s), rng));
    places.gone(a), places.admitted(b, at(2s)), places.handed_to_grpc(b, at(2s)), places.waits_for_grpc(b);  // told late
    CHECK(places.size() == 0);
  }
}

TEST_CASE("an address that holds less than half the average of places loses none", "[admission]") {
  AdmissionPlaces places{{.places = 8}};
  Rng rng{1};
  const auto node = places.accepted("10.0.0.9", at(0s));
  std::vector<ConnectionId> outsiders;
  for (int i = 0; i < 4; ++i) outsiders.push_back(places.accepted("10.0.0.1", at(1s)));
  for (int i = 0; i < 3; ++i) places.accepted("10.0.0.2", at(0s));
  CHECK(places.most_places() == "10.0.0.1 (4 of 8 places), 10.0.0.2 (3), 10.0.0.9 (1)");
  for (int i = 0; i < 100; ++i) {
    const auto ended = places.to_end(1, at(10s), rng);
    REQUIRE(ended);
    CHECK(std::find(outsiders.begin(), outsiders.end(), *ended) != outsiders.end());  // of the address with the most
  }
  const auto young = places.to_end(1, at(2500ms), rng);  // where those are too young, the next address has to do
  REQUIRE(young);
  CHECK(*young != node);
  CHECK(std::find(outsiders.begin(), outsiders.end(), *young) == outsiders.end());
}

TEST_CASE("one network of IPv6 counts as one address", "[admission]") {
  CHECK(counted_address("10.1.2.3") == "10.1.2.3");
  CHECK(counted_address("2001:db8:1:2:3:4:5:6") == "2001:db8:1:2::/64");
  CHECK(counted_address("2001:db8:1:2::77") == "2001:db8:1:2::/64");
  CHECK(counted_address("2001:db8:1:3::77") != counted_address("2001:db8:1:2::77"));
  CHECK(counted_address("fe80::1%eth0") == "fe80::/64");
  CHECK(counted_address("") == "");
}

namespace {

/// A port with a backlog, and everybody who wants to be admitted on it. Time goes in steps of 10 ms, as the listener's does when
/// all places are taken.
struct Model {
  struct Client {
    std::string address;
    Duration needs{};  // from being accepted to being admitted; zero: it never is
    std::optional<Duration> admitted{};
    int ended = 0;
  };
  AdmissionLimits limits{};
  std::size_t backlog_max = 4096;
  std::size_t accepts_per_step = 1000;
  std::size_t admissions_per_step = 1000;  // more have to wait: the processor is busy
  std::vector<Client> clients{};

  void run(Rng& rng, Duration until) {
    AdmissionPlaces places{limits};
    std::deque<std::size_t> backlog;
    std::vector<std::size_t> outside;
    for (std::size_t i = 0; i < clients.size(); ++i) outside.push_back(i);
    std::map<ConnectionId, std::pair<std::size_t, Duration>> inside;  // whose, and since when
    for (Duration now{}; now < until; now += 10ms) {
      // Whoever is outside tries again at once, in an order that chance decides.
      for (std::size_t i = outside.size(); i > 1; --i) std::swap(outside[i - 1], outside[rng.below(i)]);
      while (!outside.empty() && backlog.size() < backlog_max) backlog.push_back(outside.back()), outside.pop_back();
      std::size_t admissions = 0;
      for (auto one = inside.begin(); one != inside.end();) {
        auto& [client, since] = one->second;
        if (clients[client].needs == Duration{} || now - since < clients[client].needs || admissions == admissions_per_step) {
          ++one;
          continue;
        }
        ++admissions;
        clients[client].admitted = now;
        places.admitted(one->first, at(now));
        one = inside.erase(one);
      }
      for (std::size_t i = 0; i < accepts_per_step && !backlog.empty(); ++i) {
        if (places.is_full()) {
          const auto ended = places.to_end(backlog.size(), at(now), rng);
          if (!ended) break;
          const std::size_t client = inside.at(*ended).first;
          ++clients[client].ended;
          outside.push_back(client);
          inside.erase(*ended);
          places.gone(*ended);
        }
        inside.emplace(places.accepted(clients[backlog.front()].address, at(now)), std::pair{backlog.front(), now});
        backlog.pop_front();
      }
      REQUIRE(places.size() == inside.size());
      REQUIRE(places.size() <= limits.places);
    }
  }
};

}  // namespace

TEST_CASE("in every flood of the model a node is admitted within seconds", "[admission]") {
  for_all_seeds(12, [](Rng& rng) {
    Model model;
    const std::size_t outsiders = 3000 + rng.below(1000), addresses = 1 + rng.below(60);
    for (std::size_t i = 0; i < outsiders; ++i) model.clients.push_back({.address = "10.0.1." + std::to_string(i % addresses)});
    const std::size_t same = model.clients.size(), other = same + 1;
    model.clients.push_back({.address = "10.0.1.0", .needs = 150ms});   // some round trips, behind an address of the outsiders
    model.clients.push_back({.address = "10.0.2.1", .needs = 1500ms});  // a slow network, an address of its own
    model.run(rng, 15s);
    INFO(outsiders << " outsiders at " << addresses << " addresses");
    REQUIRE(model.clients[same].admitted);
    CHECK(*model.clients[same].admitted < 3s);
    CHECK(model.clients[same].ended == 0);
    REQUIRE(model.clients[other].admitted);
    CHECK(*model.clients[other].admitted < 5s);
    CHECK(model.clients[other].ended == 0);
  });
}

TEST_CASE("outsiders that hold more connections than the backlog has room for do not keep a node out", "[admission]") {
  for_all_seeds(4, [](Rng& rng) {
    Model model;
    for (std::size_t i = 0; i < 12'000; ++i) model.clients.push_back({.address = "10.0.1.1"});
    model.clients.push_back({.address = "10.0.1.1", .needs = 150ms});
    model.run(rng, 60s);
    REQUIRE(model.clients.back().admitted);
  });
}

TEST_CASE("a crowd of nodes that a busy coordinator admits slowly does not push out its own", "[admission]") {
  for_all_seeds(4, [](Rng& rng) {
    Model model;
    model.admissions_per_step = 5 + rng.below(20);  // 500 to 2,500 a second
    for (std::size_t i = 0; i < 4000; ++i) model.clients.push_back({.address = "10.0.3.1", .needs = 30ms});
    model.run(rng, 20s);
    for (const Model::Client& client : model.clients) {
      REQUIRE(client.admitted);
      REQUIRE(client.ended == 0);
    }
  });
}

}  // namespace elrun::test
