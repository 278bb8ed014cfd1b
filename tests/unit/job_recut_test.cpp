// What a change of the world leaves behind: the memory of the new shard and nothing of the old one, and every decided step,
// also where the change was cut short.

#include <algorithm>
#include <set>

#include "lib/job/declare/memory_table.hpp"
#include "lib/job/recover/state_transfer.hpp"
#include "lib/job/state/paged_arena.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

Layout toy_layout() {
  std::vector<UnitSpec> units;
  for (const ToyTensor& t : toy_tensors()) {
    if (units.empty() || units.back().name != t.unit) units.push_back({t.unit, {}});
    units.back().tensors.push_back({t.name, DType::f32, {t.size}, t.options});
  }
  return lay_out(units);
}

std::uint64_t plain_hash() {
  static const std::uint64_t hash = run_world({}, toy({.plan = toy_plan(0)}))[0].outcome->state_hash;
  return hash;
}

/// All end with the state of an undisturbed job, and no decided step was done again.
void nothing_is_lost(std::uint32_t members, const std::vector<Fate>& fates, int stage) {
  ElasticWorld world{members, fates, toy({.plan = toy_plan(stage)})};
  auto& results = world.wait();
  for (const Member& m : results) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == plain_hash());
  }
  CHECK(results[0].steps.size() == 7);
  CHECK(std::none_of(world.lines().begin(), world.lines().end(), [](const std::string& l) { return l.find("was lost") != l.npos; }));
}

}  // namespace

TEST_CASE("after a change of the world a rank holds its new shard of the parameters, and nothing of the old one", "[job][elastic]") {
  const Layout layout = toy_layout();
  for (const bool dies : {false, true}) {
    const TemporaryDirectory root;
    CheckpointOptions checkpoint;
    if (dies) checkpoint = {.directory = root.path(), .every = 1};
    std::atomic<std::uint64_t> wrong{0};
    std::atomic<std::uint64_t> slots_in[4] = {};
    const auto look = [&](Job& job, std::uint64_t, Slot&) {
      const std::uint32_t size = JobAccess::world_size(job);
      ++slots_in[size];
      wrong += JobAccess::parameters(job).held_bytes() !=
               bytes_by_rank(layout, zero(3), Optimizer::adamw, 8, size, size)[JobAccess::rank(job)].parameters;
    };
    Plan plan = toy_plan(3);
    plan.overlap = false;                                             // with it weights for the next slot may be there already
    const std::uint32_t before = dies ? 3 : 2, after = dies ? 2 : 3;  // cuts that differ on every rank but the first
    ElasticWorld world{before,
                       {{dies ? Fate::Kind::dies : Fate::Kind::grows, before - 1, 90, false}},
                       toy({.plan = plan, .checkpoint = checkpoint, .in_slot = look})};
    for (const Member& m : world.wait())
      if (m.outcome) CHECK(m.outcome->state_hash == plain_hash());
    INFO((dies ? "one of three dies" : "one joins two"));
    CHECK(slots_in[before] > 0);
    CHECK(slots_in[after] > 0);
    CHECK(wrong == 0);
  }
}

TEST_CASE("when shards are being cut anew and the world changes again, the old ones still count", "[job][elastic]") {
  Selection selection;
  for (const int stage : {1, 3})
    for (std::uint64_t at = 0; at < 12; ++at) {
      if (!selection.takes()) continue;
      INFO("zero(" << stage << "), at exchange " << at << " of the second generation");
      nothing_is_lost(2, {{Fate::Kind::grows, 0, stage == 1 ? 15u : 90u, false}, {Fate::Kind::breaks, 1, at, false}}, stage);
    }
}

TEST_CASE("of members that hold one cut some may have begun a generation that the others never saw", "[job][elastic]") {
  Selection selection;
  for (const int stage : {1, 3})
    for (std::uint64_t at = 0; at < 8; ++at) {
      if (!selection.takes()) continue;
      INFO("zero(" << stage << "), at exchange " << at << " of the second generation");
      nothing_is_lost(3, {{Fate::Kind::breaks, 0, stage == 1 ? 15u : 90u, false}, {Fate::Kind::splits, 1, at, false}}, stage);
    }
}

TEST_CASE("shards of several cuts go together, and what two members bring is given by both", "[job][elastic]") {
  const Layout layout = lay_out({{"a", {{"w", DType::f32, {6 * granule}, {}}}}});
  using Shares = std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>>;
  const auto shares_of = [&](const std::vector<Cut>& cuts) -> std::optional<Shares> {
    std::vector<MemberStatus> members;
    for (const Cut& cut : cuts) members.push_back({.has_state = true, .knowledge = {5, 5, 5}, .held = {.cut = cut}});
    const StateTransfer from = plan_state_transfer(layout, members, 5, cuts);
    if (!from.complete) return std::nullopt;
    Shares out;
    const auto shares = share_out(layout, from.held);
    for (const auto& given : shares.value()) {
      out.emplace_back();
      for (const Piece& p : given) out.back().emplace_back(p.begin / granule, p.end / granule);
    }
    return out;
  };
  CHECK(shares_of({{2, 0}, {2, 1}, {2, 1}}) == Shares{{{0, 3}}, {{3, 5}}, {{5, 6}}});
  CHECK(shares_of({{3, 2}, {2, 1}, {2, 0}}) == Shares{{{4, 5}}, {{3, 4}, {5, 6}}, {{0, 3}}});
  CHECK_FALSE(shares_of({{3, 2}, {2, 1}, {3, 0}}).has_value());
}

}  // namespace elrun::test
