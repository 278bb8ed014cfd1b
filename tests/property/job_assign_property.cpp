#include <algorithm>
#include <bit>

#include "lib/job/declare/assign.hpp"
#include "lib/job/gradients/tree.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

/// The least sum of popcounts by trying all sizes, for small worlds.
int least(std::uint32_t slots, std::uint32_t ranks, std::uint32_t most) {
  if (ranks == 0) return slots == 0 ? 0 : 1000;
  int best = 1000;
  for (std::uint32_t s = 1; s <= std::min(most, slots); ++s) best = std::min(best, std::popcount(s) + least(slots - s, ranks - 1, s));
  return best;
}

}  // namespace

TEST_CASE("every slot has one rank, no rank more than its share, and pieces are as few as popcounts allow", "[job]") {
  for (std::uint32_t slots = 1; slots <= 64; ++slots)
    for (std::uint32_t world = 1; world <= 70; ++world) {
      INFO("V = " << slots << ", W = " << world);
      const auto held = assign_slots(slots, world);
      REQUIRE(held.size() == world);
      std::vector<int> owners(slots, 0);
      const std::uint32_t most = (slots + world - 1) / world;
      for (const auto& mine : held) {
        REQUIRE(mine.size() <= most);
        REQUIRE(mine.empty() == (slots < world && &mine - held.data() >= slots));
        REQUIRE(std::is_sorted(mine.begin(), mine.end()));
        REQUIRE(maximal_nodes(mine, slots).size() <= static_cast<std::size_t>(std::popcount(mine.size())));
        for (const std::uint32_t s : mine) ++owners[s];
      }
      REQUIRE(std::count(owners.begin(), owners.end(), 1) == slots);
    }
}

TEST_CASE("sizes have the least traffic that balance allows", "[job]") {
  for (std::uint32_t slots = 1; slots <= 24; ++slots)
    for (std::uint32_t world = 1; world <= std::min(slots, 8u); ++world) {
      INFO("V = " << slots << ", W = " << world);
      int pieces = 0;
      for (const auto& mine : assign_slots(slots, world)) pieces += std::popcount(mine.size());
      REQUIRE(pieces == least(slots, world, (slots + world - 1) / world));
    }
}

TEST_CASE("where some ranks run no slots, the others share them as a world of theirs would", "[job]") {
  for_all_seeds(200, [](Rng& rng) {
    std::vector<bool> computes(1 + rng.below(12));
    for (std::size_t r = 0; r < computes.size(); ++r) computes[r] = rng.chance(0.6);
    computes[rng.below(computes.size())] = true;
    const auto slots = static_cast<std::uint32_t>(1 + rng.below(40));
    const auto held = assign_slots(slots, computes);
    std::vector<std::vector<std::uint32_t>> of_those;
    for (std::size_t r = 0; r < computes.size(); ++r) {
      if (computes[r]) of_those.push_back(held[r]);
      else CHECK(held[r].empty());
    }
    CHECK(of_those == assign_slots(slots, static_cast<std::uint32_t>(of_those.size())));
  });
}

}  // namespace elrun::test
