// Who holds what: any world on any nodes, and any remains of earlier ones.

#include <algorithm>

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
  for (const Spread spread : {Spread::replicated, Spread::sharded, Spread::sharded_in_node}) {
    const ShardMap h = shard_map(spread, nodes);
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
    for (std::uint32_t r = 0; r < world; ++r)
      for (std::uint32_t other = 0; other < world; ++other)
        if (spread == Spread::sharded_in_node) CHECK((h.copies[r] == h.copies[other]) == (nodes[r] == nodes[other]));
  }
  if (std::ranges::all_of(nodes, [&](std::uint32_t n) { return n == nodes[0]; }))
    CHECK(shard_map(Spread::sharded_in_node, nodes).cuts == shard_map(Spread::sharded, nodes).cuts);
}

/// Members of several worlds, of which some are no more.
void any_remains(Rng& rng) {
  const Layout layout = any_layout(rng);
  std::vector<std::optional<Cut>> held;
  for (std::uint64_t world = 0; world < 1 + rng.below(3); ++world) {
    const ShardMap h = shard_map(static_cast<Spread>(rng.below(3)), any_nodes(rng));
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
    if (cut) s.cut = *cut;
    cuts.push_back(s.cut);
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

}  // namespace

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
                       .has_begun = true,
                       .knowledge = {4, 5, 5},
                       .decision = {1.5f, true, 2.5f, 7},
                       .saved_step = 3,
                       .cut = {4, 2},
                       .whole_parameters = false,
                       .node = "node.1"};
  const auto heard = decode_member_status(encode(s));
  REQUIRE(heard.ok());
  CHECK(*heard == s);
  MemberStatus wrong = s;
  wrong.cut = {2, 2};
  CHECK_FALSE(decode_member_status(encode(wrong)).ok());
}

TEST_CASE("a rank folds what it holds where nodes are alike, so that only the others' part of its shard comes to it", "[job]") {
  const Layout layout = lay_out({{"a", {{"w", DType::f32, {8 * 1024}, {}}}}, {"b", {{"w", DType::f32, {16 * 1024}, {}}}}});
  const ShardMap h = shard_map(Spread::sharded_in_node, std::vector<std::uint32_t>{0, 0, 1, 1});
  for (std::uint32_t r = 0; r < 4; ++r) {
    const auto own = common(pieces(layout, h.folds[r]), pieces(layout, h.cuts[r]));
    std::uint64_t size = 0;
    for (const Common& both : own) size += both.a.size();
    CHECK(size == elements(pieces(layout, h.folds[r])));
  }
}

}  // namespace elrun::test
