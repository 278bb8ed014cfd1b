// Who holds what: any world on any nodes, and any remains of earlier ones.

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/job/recover/state_transfer.hpp"
#include "lib/job/state/shard_map.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

Layout any_layout(Rng& rng) {
  std::vector<UnitSpec> units;
  for (std::uint64_t u = 0; u < 1 + rng.below(4); ++u) {
    UnitSpec unit{std::to_string(u), {{"w", DType::f32, {1 + rng.below(9 * 1024)}, {}}}};
    if (rng.chance(0.3)) unit.tensors.push_back({"fixed", DType::f32, {1 + rng.below(3000)}, {.frozen = true}});
    units.push_back(std::move(unit));
  }
  return lay_out(units);
}

std::vector<std::uint32_t> any_nodes(Rng& rng) {
  std::vector<std::uint32_t> nodes(1 + rng.below(9));
  const std::uint64_t most = 1 + rng.below(nodes.size());
  for (std::uint32_t& n : nodes) n = static_cast<std::uint32_t>(rng.below(most));
  return nodes;
}

/// How many times each granule of the model is in these.
std::vector<int> counted(const Layout& layout, const std::vector<std::vector<Piece>>& by_rank) {
  std::vector<int> out(layout.granules());
  for (const auto& shard : by_rank)
    for (const Piece& p : shard) {
      CHECK(p.begin % granule == 0);
      CHECK(p.end % granule == 0);
      CHECK(p.gradient == layout.units[p.unit].gradient_begin + p.begin);
      CHECK(p.parameter == layout.units[p.unit].begin + p.begin);
      for (std::uint64_t g = p.gradient / granule; g < (p.gradient + p.size()) / granule; ++g) ++out[g];
    }
  return out;
}
std::vector<int> every_granule(const Layout& layout, int times) { return std::vector<int>(layout.granules(), times); }

void any_world(Rng& rng) {
  const Layout layout = any_layout(rng);
  const auto nodes = any_nodes(rng);
  const auto world = static_cast<std::uint32_t>(nodes.size());
  for (const Sharding sharding : {Sharding::replicated, Sharding::sharded, Sharding::sharded_in_node, Sharding::mirrored}) {
    const ShardMap h = shard_map(sharding, nodes);
    std::vector<std::vector<Piece>> held, folded, counts;
    for (std::uint32_t r = 0; r < world; ++r) {
      held.push_back(pieces(layout, h.cuts[r]));
      folded.push_back(pieces(layout, h.folds[r]));
      counts.push_back(primary_pieces(layout, h, r));
      // What a rank counts as its own, it holds, at this place.
      for (const Piece& p : counts.back()) {
        const auto both = common(held.back(), {p});
        REQUIRE(both.size() == 1);
        CHECK(both[0].a.size() == p.size());
        CHECK(both[0].a.place == p.place);
      }
    }
    CHECK(counted(layout, folded) == every_granule(layout, 1));
    CHECK(counted(layout, counts) == every_granule(layout, 1));
    // Each copy is whole.
    auto copies = h.copies;
    std::sort(copies.begin(), copies.end());
    copies.erase(std::unique(copies.begin(), copies.end()), copies.end());
    CHECK(counted(layout, held) == every_granule(layout, static_cast<int>(copies.size())));
    // With what it is given a rank has every element of its copy once, and nobody gives what he has not.
    for (std::uint32_t taker = 0; taker < world; ++taker) {
      std::vector<std::vector<Piece>> gathered{held[taker]};
      for (std::uint32_t giver = 0; giver < world; ++giver) {
        const auto given = h.gives(giver, taker);
        if (giver == taker || !given) continue;
        REQUIRE(given->wrapped() == 0);
        gathered.push_back(pieces(layout, *given));
        std::uint64_t has = 0;
        for (const Common& both : common(held[giver], gathered.back())) has += both.a.size();
        CHECK(has == elements(gathered.back()));
      }
      CHECK(counted(layout, gathered) == every_granule(layout, 1));
    }
    for (std::uint32_t r = 0; r < world; ++r)
      for (std::uint32_t other = 0; other < world; ++other)
        if (sharding == Sharding::sharded_in_node) CHECK((h.copies[r] == h.copies[other]) == (nodes[r] == nodes[other]));
  }
  if (std::ranges::all_of(nodes, [&](std::uint32_t n) { return n == nodes[0]; }))
    CHECK(shard_map(Sharding::sharded_in_node, nodes).cuts == shard_map(Sharding::sharded, nodes).cuts);
}

/// Members of several worlds, of which some are no more.
void any_remains(Rng& rng) {
  const Layout layout = any_layout(rng);
  std::vector<std::optional<Cut>> held;
  for (std::uint64_t world = 0; world < 1 + rng.below(3); ++world) {
    const ShardMap h = shard_map(static_cast<Sharding>(rng.below(4)), any_nodes(rng));
    for (const Cut& cut : h.cuts)
      if (rng.chance(0.7)) held.push_back(rng.chance(0.9) ? std::optional{cut} : std::nullopt);
  }
  if (held.empty()) return;
  std::vector<int> holders_of(layout.granules());
  for (const auto& cut : held)
    if (cut)
      for (const Piece& p : pieces(layout, *cut))
        for (std::uint64_t g = p.gradient / granule; g < (p.gradient + p.size()) / granule; ++g) ++holders_of[g];
  const bool all_there = std::ranges::all_of(holders_of, [](int n) { return n > 0; });

  std::vector<MemberStatus> statuses;
  std::vector<Cut> cuts;
  for (const auto& cut : held) {
    MemberStatus s{.has_state = cut.has_value(), .knowledge = {5, 5, 5}};
    if (cut) s.held.cut = *cut;
    cuts.push_back(s.held.cut);
    statuses.push_back(s);
  }
  const StateTransfer from = plan_state_transfer(layout, statuses, 5, cuts);
  CHECK(from.held == held);
  CHECK(from.complete == (all_there && from.found));
  CHECK(from.moves == std::ranges::any_of(held, [](const auto& cut) { return !cut; }));
  CHECK_FALSE(plan_state_transfer(layout, statuses, 6, cuts).found);

  for (std::uint32_t taker = 0; taker < held.size(); ++taker) {
    const auto shares = share_out(layout, held, taker);
    REQUIRE(shares.has_value() == all_there);
    if (!shares) return;
    CHECK(counted(layout, *shares) == every_granule(layout, 1));
    for (std::uint32_t giver = 0; giver < held.size(); ++giver) {
      const auto alone = share_of(layout, held, taker, giver);
      CHECK(std::ranges::equal(alone, (*shares)[giver], [](const Piece& a, const Piece& b) {
        return a.unit == b.unit && a.begin == b.begin && a.end == b.end && a.gradient == b.gradient && a.parameter == b.parameter &&
               a.place == b.place;
      }));
      if (!held[giver]) CHECK((*shares)[giver].empty());
      if (!held[giver]) continue;
      std::uint64_t has = 0;
      for (const Common& both : common(pieces(layout, *held[giver]), (*shares)[giver])) has += both.a.size();
      std::uint64_t gives = 0;
      for (const Piece& p : (*shares)[giver]) gives += p.size();
      CHECK(has == gives);                                                         // nobody gives what it has not
      if (giver == taker) CHECK(gives == elements(pieces(layout, *held[giver])));  // nor takes what it has
    }
  }
}

/// Every way in which so many ranks can lie on nodes, numbered in the order of their first ranks.
void each_way_to_lie(std::uint32_t world, const auto& look, std::vector<std::uint32_t> nodes = {}) {
  if (nodes.size() == world) return look(nodes);
  const std::uint32_t known = nodes.empty() ? 0 : std::ranges::max(nodes) + 1;
  for (std::uint32_t node = 0; node <= known; ++node) {
    nodes.push_back(node);
    each_way_to_lie(world, look, nodes);
    nodes.pop_back();
  }
}

Layout two_unequal_units() { return lay_out({{"a", {{"w", DType::f32, {9 * 1024}, {}}}}, {"b", {{"w", DType::f32, {25 * 1024}, {}}}}}); }

/// Whether those who are left have all of the state of a step that all had applied.
bool is_complete(const Layout& layout, const ShardMap& h, const auto& is_left) {
  std::vector<MemberStatus> left;
  for (std::uint32_t r = 0; r < h.world(); ++r)
    if (is_left(r)) left.push_back({.has_state = true, .knowledge = {5, 5, 5}, .held = {.cut = h.cuts[r]}});
  return plan_state_transfer(layout, left, 5, std::vector<Cut>(left.size())).complete;
}

void check_mirrors(const Layout& layout, const std::vector<std::uint32_t>& nodes) {
  const ShardMap h = shard_map(Sharding::mirrored, nodes);
  const std::uint32_t world = h.world();
  std::vector<std::uint32_t> sizes(world);
  for (const std::uint32_t n : nodes) ++sizes[n];
  const std::uint32_t largest = std::ranges::max(sizes);
  INFO("nodes " << fmt::format("{}", fmt::join(nodes, " ")));
  // Two holders of each granule, and on two nodes where there are two.
  std::vector<std::vector<std::uint32_t>> holders(layout.granules());
  for (std::uint32_t r = 0; r < world; ++r)
    for (const Piece& p : pieces(layout, h.cuts[r]))
      for (std::uint64_t g = p.gradient / granule; g < (p.gradient + p.size()) / granule; ++g) holders[g].push_back(r);
  for (const auto& who : holders) {
    REQUIRE(who.size() == std::min(world, 2u));
    if (world > 1) REQUIRE((nodes[who[0]] != nodes[who[1]] || largest == world));
  }
  // Two parts of as many as there are ranks; where one node has more than half of them, what the others have to hold together.
  const bool is_even = 2 * largest <= world || largest == world;
  for (std::uint32_t r = 0; r < world; ++r) {
    std::uint64_t bound = 0, folded = 0;
    for (const UnitLayout& unit : layout.units) {
      const std::uint64_t granules = unit.trainable / granule, parts = is_even ? world : std::min(largest, world - largest);
      bound += std::min(granules, (granules + parts - 1) / parts * (is_even ? 2 : 1)) * granule;
    }
    CHECK(elements(pieces(layout, h.cuts[r])) <= bound);
    for (const Common& both : common(pieces(layout, h.folds[r]), pieces(layout, h.cuts[r]))) folded += both.a.size();
    if (is_even) CHECK(folded == elements(pieces(layout, h.folds[r])));  // what it adds up, it holds
  }
  // Whoever is lost, one rank or one node of several, the others have all; both holders of an element take it with them.
  for (std::uint32_t lost = 0; lost < world && world > 1; ++lost) {
    CHECK(is_complete(layout, h, [&](std::uint32_t r) { return r != lost; }));
    if (largest < world) CHECK(is_complete(layout, h, [&](std::uint32_t r) { return nodes[r] != nodes[lost]; }));
  }
  for (const auto& who : holders)
    if (world > 2) REQUIRE_FALSE(is_complete(layout, h, [&](std::uint32_t r) { return std::ranges::find(who, r) == who.end(); }));
}

}  // namespace

TEST_CASE("mirrored state is on two ranks, of two nodes where there are two, and outlives any rank and any node", "[job][mirrored]") {
  std::size_t ways = 0;
  for (std::uint32_t world = 1; world <= 7; ++world)
    each_way_to_lie(world, [&](const std::vector<std::uint32_t>& nodes) { check_mirrors(two_unequal_units(), nodes), ++ways; });
  CHECK(ways == 1 + 2 + 5 + 15 + 52 + 203 + 877);
  for_all_seeds(200, [](Rng& rng) {
    std::vector<std::uint32_t> nodes(1 + rng.below(40));
    const std::uint64_t most = 1 + rng.below(8);
    for (std::uint32_t& n : nodes) n = std::min(static_cast<std::uint32_t>(rng.below(most)), static_cast<std::uint32_t>(nodes.size()) - 1);
    if (rng.chance(0.5)) std::ranges::sort(nodes);
    check_mirrors(any_layout(rng), nodes);
  });
}

TEST_CASE("the two holders are in two racks and zones where none has more than half of the ranks, for ranks go by place",
          "[job][mirrored]") {
  // Three zones of two racks of two nodes of two ranks.
  std::vector<std::uint32_t> nodes(24);
  for (std::uint32_t r = 0; r < nodes.size(); ++r) nodes[r] = r / 2;
  const Layout layout = two_unequal_units();
  const ShardMap h = shard_map(Sharding::mirrored, nodes);
  for (std::uint32_t zone = 0; zone < 3; ++zone) CHECK(is_complete(layout, h, [&](std::uint32_t r) { return r / 8 != zone; }));
}

TEST_CASE("each part is folded by one rank, counted by one who holds it, and every copy is whole", "[job]") {
  for_all_seeds(300, any_world);
}

TEST_CASE("whatever is left of several worlds gives each element once, by who holds it, or says that one is lost", "[job]") {
  for_all_seeds(300, any_remains);
}

TEST_CASE("from its own node a rank guesses the others, right where all are as large", "[job]") {
  CHECK(guess_nodes(6, 3, 2, 1) == std::vector<std::uint32_t>{0, 0, 1, 1, 2, 2});
  CHECK(guess_nodes(7, 6, 3, 0) == std::vector<std::uint32_t>{0, 0, 0, 1, 1, 1, 2});
  CHECK(guess_nodes(5, 1, 4, 0) == std::vector<std::uint32_t>{0, 1, 1, 1, 1});
  CHECK(guess_nodes(3, 1, 1, 0) == std::vector<std::uint32_t>{0, 1, 2});
  CHECK(guess_nodes(3, 1, 9, 4) == std::vector<std::uint32_t>{0, 0, 0});  // nonsense of the environment
  CHECK(guess_nodes(3, 1, 0, 0) == std::vector<std::uint32_t>{0, 0, 0});
  CHECK(number_nodes(std::vector<std::string>{"b", "a", "b", "c"}) == std::vector<std::uint32_t>{0, 1, 0, 2});
}

TEST_CASE("what a member says of itself arrives as it was said", "[job]") {
  const MemberStatus s{.has_state = true,
                       .missed_none = true,
                       .has_begun = true,
                       .knowledge = {4, 5, 5},
                       .decision = {1.5f, true, 2.5f, 7},
                       .saved_step = 3,
                       .unsaved_for = 90s,
                       .remembered_step = 2,
                       .remembered_decided = 6,
                       .held = {{4, 3, 2}, {7, {{1, 2}}}, {3, 1}, {8, {{3, 4}}}},
                       .whole_parameters = false,
                       .node = "node.1",
                       .before = {{4, {{1, 2}}}, 2, 3},
                       .copies = Copies::together};
  const auto heard = decode_member_status(encode(s));
  REQUIRE(heard.ok());
  CHECK(*heard == s);
  MemberStatus wrong = s;
  wrong.unsaved_for = -1s;
  CHECK_FALSE(decode_member_status(encode(wrong)).ok());
  wrong = s;
  for (const Cut& cut : {Cut{2, 2}, Cut{4, 0, 0}, Cut{4, 0, 3}, Cut{1, 0, 2}, Cut{~0u, 0, ~0u}}) {
    for (Cut HeldCut::*which : {&HeldCut::cut, &HeldCut::next}) {
      wrong.held = s.held;
      wrong.held.*which = cut;
      CHECK_FALSE(decode_member_status(encode(wrong)).ok());
    }
  }
  wrong = s;
  for (const auto& [rank, world] : {std::pair{3u, 3u}, std::pair{1u, 0u}, std::pair{0u, ~0u}}) {
    wrong.before.rank = rank, wrong.before.world = world;
    CHECK_FALSE(decode_member_status(encode(wrong)).ok());
  }
}

TEST_CASE("a rank folds what it holds where nodes are alike, so that only the others' part of its shard comes to it", "[job]") {
  const Layout layout = lay_out({{"a", {{"w", DType::f32, {8 * 1024}, {}}}}, {"b", {{"w", DType::f32, {16 * 1024}, {}}}}});
  const ShardMap h = shard_map(Sharding::sharded_in_node, std::vector<std::uint32_t>{0, 0, 1, 1});
  for (std::uint32_t r = 0; r < 4; ++r) {
    const auto own = common(pieces(layout, h.folds[r]), pieces(layout, h.cuts[r]));
    std::uint64_t size = 0;
    for (const Common& both : own) size += both.a.size();
    CHECK(size == elements(pieces(layout, h.folds[r])));
  }
}

}  // namespace elrun::test
