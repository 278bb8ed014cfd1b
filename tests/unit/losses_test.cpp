#include "launcher/supervise/losses.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("the first lost peer of a generation gives the reason", "[losses]") {
  LostPeers lost;
  CHECK_FALSE(lost.any());
  CHECK(lost.add({0, "rank 1 is gone"}));
  CHECK_FALSE(lost.add({3, "rank 2 is gone"}));
  CHECK((lost.first().worker == 0 && lost.first().why == "rank 1 is gone"));
  lost.clear();
  CHECK_FALSE(lost.any());
  CHECK(lost.add({}));
  CHECK(lost.any());
}

TEST_CASE("a worker's own failure is the reason, whoever lost a peer before", "[losses]") {
  LostPeers lost;
  CHECK(lost.add({0, "rank 2 is gone"}));
  CHECK_FALSE(lost.add({2, "NCCL failed", true}));
  CHECK_FALSE(lost.add({1, "NCCL failed here, too", true}));
  CHECK((lost.first().worker == 2 && lost.first().why == "NCCL failed" && lost.first().own));
}

TEST_CASE("each worker names one peer that it cannot reach, in bounded words", "[losses]") {
  LostPeers lost;
  CHECK(lost.add_unreachable({.rank = 0, .peer = 4, .what = std::string(1000, 'x')}));
  CHECK_FALSE(lost.add_unreachable({.rank = 0, .peer = 5, .what = "again"}));
  CHECK(lost.add_unreachable({.rank = 1, .peer = 4, .what = "no connection"}));
  REQUIRE(lost.unreachable().size() == 2);
  CHECK(lost.unreachable()[0].what.size() == unreachable_why_max);
  CHECK(lost.unreachable()[1].what == "no connection");
}

TEST_CASE("recovery takes from the first loss to the first step decided in a generation without one", "[losses]") {
  RecoveryTime recovery;
  const Instant start{};
  CHECK_FALSE(recovery.recovered(start));
  recovery.lost(start + 1s);
  recovery.lost(start + 2s);  // in the same generation
  CHECK(recovery.so_far(start + 3s) == 2s);
  CHECK_FALSE(recovery.recovered(start + 3s));
  recovery.begin_generation();
  CHECK(recovery.recovered(start + 6s) == 5s);
  CHECK_FALSE(recovery.recovered(start + 7s));
  CHECK_FALSE(recovery.so_far(start + 7s));
}
