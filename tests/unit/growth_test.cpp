#include "rendezvous/round/growth.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::growth {
namespace {

const NodeId a{"a"}, b{"b"};
Instant at(Duration since_start) { return Instant{} + since_start; }

}  // namespace

TEST_CASE("a generation ends for growth only where somebody has more", "[growth]") {
  Growth growth;
  CHECK_FALSE(growth.at(at(0s), {}));
  CHECK(growth.at(at(0s), at(60s)) == at(60s) + growth_gather);
  growth.offer(a, at(70s));
  CHECK(growth.at(at(0s), {}) == at(70s) + growth_gather);
  CHECK(growth.offers() == std::set{a});
  SECTION("whoever came first counts") {
    growth.offer(b, at(80s));
    CHECK(growth.at(at(0s), at(75s)) == at(70s) + growth_gather);
    CHECK(growth.at(at(0s), at(65s)) == at(65s) + growth_gather);
  }
  SECTION("an offer is for the next generation, and no longer") {
    growth.begin();
    CHECK_FALSE(growth.at(at(0s), {}));
    growth.offer(b, at(90s));
    CHECK(growth.at(at(0s), {}) == at(90s) + growth_gather);
  }
}

TEST_CASE("a young generation is left alone, for longer after each growth that no decided step has followed", "[growth]") {
  Growth growth;
  for (const Duration settle : {1s, 2s, 4s, 8s, 16s, 32s, 32s}) {
    CHECK(growth.at(at(100s), at(100s)) == at(100s) + settle);
    growth.grew();
  }
  growth.progressed();
  CHECK(growth.at(at(100s), at(100s)) == at(101s));
}

}  // namespace elrun::test::growth
