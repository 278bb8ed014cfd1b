// *Settle* without a job: what became of the last step follows from what members bring.

#include "lib/job/recover/settle.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/job/recover/state_transfer.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

/// Decided steps, and those that the member applied.
MemberStatus member(std::uint64_t applied, std::uint64_t decided, std::uint64_t voted, Cut cut = {}) {
  MemberStatus s{.has_state = true,
                 .has_begun = true,
                 .is_past_restore = true,
                 .knowledge = {.applied = applied, .decided = decided, .voted = voted},
                 .saved_step = never_saved,
                 .held = {.cut = cut}};
  s.decision.count = decided;
  s.evaluations = 2;
  return s;
}
MemberStatus at_step(std::uint64_t steps, Cut cut = {}) { return member(steps, steps, steps, cut); }
MemberStatus newcomer() { return {.saved_step = never_saved}; }

Layout forty() { return lay_out({{"unit", {{"w", DType::f32, {40 * 1024}, {}}}}}); }
Settled settled(std::vector<MemberStatus>& statuses, Sums sums = Sums::alike) { return settle(forty(), statuses, sums); }

using R = Recovery;

}  // namespace

TEST_CASE("who voted for a step that one member knows to be decided applies it; who did not vote gets the state", "[settle]") {
  std::vector<MemberStatus> statuses{newcomer(), member(5, 5, 5), member(4, 4, 5), member(4, 4, 4)};
  const Settled all = settled(statuses);
  CHECK(all.newest_step == 5);
  CHECK(all.members == std::vector{Recovery::fetch, Recovery::go_on, Recovery::apply, Recovery::fetch});
  CHECK(all.printer == 1);
  REQUIRE(all.decision.has_value());
  CHECK(all.applies(2));
  CHECK_FALSE(all.applies(1));
  bring_up_to_date(statuses, all, false);
  CHECK(statuses[2].knowledge.applied == 5);
  CHECK(statuses[2].evaluations == 0);
  CHECK_FALSE(statuses[2].whole_parameters);
  CHECK(statuses[1].evaluations == 2);
  CHECK(statuses[3].knowledge.applied == 4);
  CHECK(statuses[2].decision == statuses[1].decision);  // for newcomers that get the state from it
}

TEST_CASE("the first member whose program was in its loop prints", "[settle]") {
  std::vector<MemberStatus> statuses{newcomer(), newcomer(), member(5, 5, 5)};
  statuses[0].has_begun = true;  // a newcomer that got parts of the state before its giver died
  CHECK(settled(statuses).printer == 2);
  statuses[2].is_past_restore = false, statuses[2].keeps_position = true;  // runs again in its process
  CHECK(settled(statuses).printer == 2);
  statuses[2].keeps_position = false;
  CHECK(settled(statuses).printer == 0);
}

TEST_CASE("a member's status comes out as it went in", "[settle]") {
  for (int bit = 0; bit < 6; ++bit) {
    MemberStatus in = member(4, 4, 5);
    in.has_state = bit == 0, in.has_host_state = bit == 1, in.has_begun = bit == 2, in.is_past_restore = bit == 3;
    in.keeps_position = bit == 4, in.whole_parameters = bit == 5;
    for (int i = 0; i < bit % 3; ++i) in.checkpoints.push_back({4u + i, {2, {{5, 6}}}, {4, 3, 2}});
    const auto out = decode_member_status(encode(in));
    REQUIRE(out.ok());
    CHECK(*out == in);
  }
  MemberStatus too_many = member(4, 4, 5);
  too_many.checkpoints.resize(checkpoints_held_max + 1);
  CHECK_FALSE(decode_member_status(encode(too_many)).ok());
  too_many.checkpoints.resize(1);
  too_many.checkpoints[0].cut = {2, 2};
  CHECK_FALSE(decode_member_status(encode(too_many)).ok());
}

TEST_CASE("a step for which members voted and that nobody knows to be decided is done again", "[settle]") {
  std::vector<MemberStatus> statuses{member(4, 4, 5), member(4, 4, 5)};
  const Settled all = settled(statuses);
  CHECK(all.newest_step == 4);
  CHECK(all.members == std::vector{Recovery::go_on, Recovery::go_on});
}

TEST_CASE("a recut that one member knows to be finished is finished by all who have their new shards, else by none", "[settle]") {
  const Generation second{2, {{7, 8}}}, other{2, {{7, 9}}};
  const Cut before{3, 1}, after{2, 1};
  std::vector<MemberStatus> statuses{member(5, 5, 5), member(5, 5, 5), member(5, 5, 5)};
  statuses[0].held = statuses[2].held = {.cut = before, .next = after, .next_in = second};
  statuses[1].held = {.cut = {2, 0}, .recut_in = second};
  statuses[2].held.next_in = other;  // of another coordinator's
  (void)settled(statuses);
  CHECK(statuses[0].held == HeldCut{.cut = after, .recut_in = second});
  CHECK(statuses[1].held == HeldCut{.cut = {2, 0}, .recut_in = second});
  CHECK(statuses[2].held == HeldCut{.cut = before});
}

TEST_CASE("who applies a step for which it voted in the generation of its recut does so to its new shard", "[settle]") {
  // The second member holds all of the state, and knows that the step was decided, be it by votes of another generation.
  const Generation second{2, {{7, 8}}}, first{1, {{7, 8}}};
  const Cut before{2, 1}, after{3, 1};
  const auto cut_after = [&](const Generation& decided_in, const Generation& voted_in) {
    std::vector<MemberStatus> statuses{member(4, 4, 5), member(5, 5, 5)};
    statuses[0].knowledge.voted_in = voted_in;
    statuses[1].knowledge.decided_in = statuses[1].knowledge.voted_in = decided_in;
    statuses[1].decision.count = 5;
    statuses[0].held = {.cut = before, .next = after, .next_in = second};
    CHECK(settled(statuses).applies(0));
    return statuses[0].held;
  };
  CHECK(cut_after(second, second) == HeldCut{.cut = after, .recut_in = second});
  CHECK(cut_after(first, second) == HeldCut{.cut = after, .recut_in = second});
  CHECK(cut_after(first, first) == HeldCut{.cut = before});
}

TEST_CASE("a recut of which nobody knows the end is undone, unless only the new shards are all of the state", "[settle]") {
  const Generation second{2, {{7, 8}}};
  // Four ranks had two of four parts each. The last died, and then the one that had the same parts.
  const auto holds = [&](Cut before, Cut after) {
    MemberStatus s = member(5, 5, 5);
    s.held = {.cut = before, .next = after, .next_in = second};
    return s;
  };
  std::vector<MemberStatus> statuses{newcomer(), holds({4, 0, 2}, {3, 0, 2}), holds({4, 0, 2}, {3, 1, 2})};
  (void)settled(statuses);
  CHECK(statuses[1].held == HeldCut{.cut = {3, 0, 2}, .recut_in = second});
  CHECK(statuses[2].held == HeldCut{.cut = {3, 1, 2}, .recut_in = second});
  for (const bool all_is_there : {true, false}) {
    // The partner lives, and has not its new shard; or what is new is not all of the state either.
    statuses = {holds({4, 0, 2}, {3, 0, 2}), holds({4, 0, 2}, {3, 0, 2}), member(5, 5, 5)};
    statuses[2].held.cut = all_is_there ? Cut{4, 2, 2} : Cut{4, 1, 1};
    (void)settled(statuses);
    CHECK(statuses[0].held == HeldCut{.cut = {4, 0, 2}});
    CHECK(statuses[1].held == HeldCut{.cut = {4, 0, 2}});
  }
}

TEST_CASE("a member that alone applied a step and returns does not set the others back beyond the newest complete state", "[settle]") {
  // Of four ranks each has two of four parts. X got all votes for step 5; the others did not hear of that, and have not decided it again.
  for (const std::uint32_t x : {0u, 1u, 2u, 3u}) {
    std::vector<MemberStatus> statuses;
    for (std::uint32_t r = 0; r < 4; ++r) statuses.push_back(at_step(r == x ? 5 : 4, {4, 2 * r % 4, 2}));
    statuses[x].node = "x";
    const Settled all = settled(statuses);
    CHECK(all.newest_step == 4);
    CHECK(all.known_step == 5);
    for (std::uint32_t r = 0; r < 4; ++r) CHECK(all.members[r] == (r == x ? R::fetch : R::go_on));
    REQUIRE(all.decision.has_value());
    CHECK(all.decision->count == 4);
    CHECK(
        going_back_line(statuses, all).value() ==
        fmt::format(
            "rank {} (node x) is at step 5, but parts of that state were lost with other workers. All continue from step 4, the newest complete state. 1 "
            "step is repeated",
            x));
    bring_up_to_date(statuses, all, false);
    const StateTransfer transfer = plan_state_transfer(forty(), statuses, all.newest_step, std::vector<Cut>(4));
    CHECK(transfer.complete);
    CHECK(transfer.newcomers[x]);
  }
  // It has all parts alone: the others get them.
  std::vector<MemberStatus> statuses{at_step(4), at_step(5), at_step(4)};
  CHECK(settled(statuses).newest_step == 5);
  CHECK_FALSE(going_back_line(statuses, settled(statuses)).has_value());
}

TEST_CASE("a state that is incomplete is passed over for an older one, but for none that is older than the newest checkpoint", "[settle]") {
  const auto newest = [](const std::function<void(std::vector<MemberStatus>&)>& change) {
    // Rank 0 lacks a part of step 7, rank 1 one of step 5; 2 and 3 have all of step 3.
    std::vector<MemberStatus> statuses{at_step(7, {2, 0}), at_step(5, {2, 1}), at_step(3, {2, 0}), at_step(3, {2, 1}), newcomer()};
    change(statuses);
    return settled(statuses).newest_step;
  };
  CHECK(newest([](auto&) {}) == 3);
  for (const std::uint64_t saved : {3u, 4u})
    for (const std::uint32_t who : {0u, 1u, 2u, 4u}) {
      CHECK(newest([&](auto& statuses) { statuses[who].saved_step = saved; }) == (saved == 3 ? 3 : 7));
      CHECK(newest([&](auto& statuses) { statuses[who].remembered_step = saved; }) == (saved == 3 ? 3 : 7));  // its agent knows of it
    }
  CHECK(newest([](auto& statuses) { statuses[2].has_state = false; }) == 7);  // nothing is complete: all go back to a checkpoint
  CHECK(newest([](auto& statuses) { statuses[2].has_host_state = false; }) == 3);
  CHECK(newest([](auto& statuses) { statuses[2].has_host_state = statuses[3].has_host_state = false; }) == 7);
  // Who voted for a step comes to it where a member knows to what the votes came.
  const auto votes = [](std::vector<MemberStatus>& statuses) { statuses[2] = member(4, 4, 5, {2, 0}); };
  CHECK(newest(votes) == 5);
  CHECK(newest([&](auto& statuses) { votes(statuses), statuses[1].decision.count = 0; }) == 7);
  // Of step 2 on, the beginning included.
  CHECK(newest([](auto& statuses) { statuses[2] = at_step(0, {2, 0}), statuses[3] = at_step(0, {2, 1}); }) == 0);
}

namespace {

constexpr Lineage first_lineage{{1, 1}}, other_lineage{{2, 2}};

/// It had its state in that generation last, and others have begun some since.
MemberStatus spare_since(std::uint64_t number, std::uint64_t step) {
  MemberStatus s = at_step(step);
  s.before = {{number, first_lineage}, 0, 2};
  s.knowledge.decided_in = {number, first_lineage};
  return s;
}
MemberStatus without_gap(MemberStatus s) { return s.missed_none = true, s; }

}  // namespace

TEST_CASE("members may have missed saves where each that has a state had no place for a while", "[settle]") {
  CHECK(may_have_missed_saves(std::vector{spare_since(7, 18), spare_since(6, 17), newcomer()}));
  CHECK_FALSE(may_have_missed_saves(std::vector{spare_since(7, 18), without_gap(spare_since(8, 29))}));
  CHECK(may_have_missed_saves(std::vector{spare_since(7, 18), without_gap(newcomer())}));  // it has no state
  CHECK_FALSE(may_have_missed_saves(std::vector{newcomer()}));                             // that world looks at all that is remembered
}

TEST_CASE("members that missed no number may have missed saves where another coordinator began this generation for each that has a state",
          "[settle]") {
  const auto elsewhere = [](MemberStatus s) { return s.coordinator_changed = true, s; };
  const auto changed = [](const std::vector<MemberStatus>& statuses) { return may_have_missed_saves_of_another_coordinator(statuses); };
  const MemberStatus away = spare_since(7, 18), here = without_gap(spare_since(8, 29)), moved = elsewhere(here);
  CHECK(changed({moved, moved, elsewhere(without_gap(newcomer()))}));
  CHECK(changed({moved, elsewhere(away)}));
  CHECK_FALSE(changed({moved, here}));  // it was in the last generation of this coordinator
  CHECK_FALSE(changed({elsewhere(away), newcomer()}));
  CHECK(may_have_missed_saves(std::vector{elsewhere(away), newcomer()}));  // there is a gap in the numbers
  CHECK_FALSE(may_have_missed_saves(std::vector{moved, moved}));
  CHECK_FALSE(changed({elsewhere(without_gap(newcomer()))}));
  MemberStatus holder = without_gap(newcomer());  // of parts of an in-memory checkpoint: it counts as who has a state
  holder.checkpoints.push_back({6, {3, first_lineage}, {2, 0}});
  CHECK(changed({elsewhere(holder), newcomer()}));
  CHECK_FALSE(changed({elsewhere(holder), here}));
  CHECK_FALSE(changed({moved, holder}));
}

TEST_CASE("a checkpoint that others saved while all members with a state had no place in the world is newer than that state", "[settle]") {
  const auto all = [&](const SavedCheckpoint& saved) {
    std::vector<MemberStatus> statuses{spare_since(7, 18), spare_since(6, 17), newcomer()};
    const bool newer = is_newer(saved, statuses, Sums::alike);
    const Settled settled = settle(forty(), statuses, Sums::alike, saved);
    CHECK(settled.known_step == 18);
    CHECK(settled.newer_checkpoint == (newer ? saved.step : 0));
    CHECK(newer_checkpoint_line(settled).has_value() == newer);
    CHECK_FALSE(going_back_line(statuses, settled).has_value());
    bring_up_to_date(statuses, settled, false);
    CHECK(plan_state_transfer(forty(), statuses, settled.newest_step, std::vector<Cut>(3)).complete == !newer);
    return newer;
  };
  CHECK_FALSE(all({}));
  CHECK(all({28, {8, first_lineage}}));
  CHECK_FALSE(all({18, {8, first_lineage}}));
  CHECK_FALSE(all({28, {7, first_lineage}}));  // a start passed over it, and these went on from the one before
  CHECK(all({28, {3, other_lineage}}));        // that job began to count again
}

TEST_CASE("a program that runs again in its process still knows in which generation its state was decided", "[settle]") {
  std::vector<MemberStatus> statuses{spare_since(7, 18)};
  statuses[0].before = {};
  CHECK_FALSE(is_newer({28, {6, first_lineage}}, statuses, Sums::alike));
  CHECK(is_newer({28, {8, first_lineage}}, statuses, Sums::alike));
}

TEST_CASE("steps that others decided meanwhile, and of which nothing is left, are told", "[settle]") {
  const auto line = [](std::vector<MemberStatus> statuses, const SavedCheckpoint& saved = {}) {
    const Settled settled = settle(forty(), statuses, Sums::alike, saved);
    return missed_steps_line(statuses, settled).value_or("");
  };
  MemberStatus agent = newcomer();  // its agent saw its workers decide them
  agent.remembered_decided = 25;
  CHECK_THAT(line({spare_since(7, 18), agent}), Catch::Contains("at step 18") && Catch::Contains("7 steps are repeated"));
  CHECK(line({spare_since(7, 18), agent}, {28, {8, first_lineage}}).empty());  // all load it, and another line says so
  CHECK(line({without_gap(spare_since(7, 18)), agent}).empty());               // steps that were undone before
  agent.remembered_decided = 18;
  CHECK(line({spare_since(7, 18), agent}).empty());
}

TEST_CASE("with sums of a generation, parts of as many steps are of one state only where one generation decided them", "[settle]") {
  const Generation six{6, {{9, 9}}}, seven{7, {{9, 9}}};
  std::vector<MemberStatus> statuses{at_step(5, {2, 0}), at_step(5, {2, 0}), at_step(5, {2, 1})};
  statuses[0].knowledge.decided_in = seven;
  statuses[1].knowledge.decided_in = statuses[2].knowledge.decided_in = six;
  CHECK(settled(statuses).decided_in == seven);
  const Settled all = settled(statuses, Sums::of_generation);
  CHECK(all.newest_step == 5);
  CHECK(all.decided_in == six);
  CHECK(all.members == std::vector{R::fetch, R::go_on, R::go_on});
  CHECK_FALSE(going_back_line(statuses, all).has_value());  // no step is done again
}

namespace {

/// By the sentence alone: which steps' states are there, granule by granule.
bool is_there(const Layout& layout, const std::vector<MemberStatus>& statuses, Sums sums, std::uint64_t steps, const Generation& in,
              bool next) {
  const bool votes_are_known = std::ranges::any_of(statuses, [&](const MemberStatus& s) {
    return s.has_state && s.knowledge.decided == steps && s.knowledge.decided_in == in && s.decision.count == steps;
  });
  std::set<std::pair<std::uint32_t, std::uint64_t>> there;
  bool host_state = false;
  for (const MemberStatus& s : statuses) {
    const Knowledge& k = s.knowledge;
    const bool of_it = sums == Sums::alike || (k.decided == k.applied ? k.decided_in : Generation{}) == in;
    const bool has = k.applied == steps && of_it;
    const bool comes = votes_are_known && k.applied + 1 == steps && k.voted == steps && (sums == Sums::alike || k.voted_in == in);
    if (!s.has_state || (!has && !comes)) continue;
    host_state |= s.has_host_state;
    for (const Piece& p : pieces(layout, next && s.held.next_in.number > 0 ? s.held.next : s.held.cut))
      for (std::uint64_t g = p.begin / granule; g < p.end / granule; ++g) there.insert({p.unit, g});
  }
  std::size_t all = 0;
  for (const UnitLayout& unit : layout.units) all += unit.trainable / granule;
  return host_state && there.size() == all;
}

Cut any_cut(Rng& rng) {
  const auto parts = static_cast<std::uint32_t>(1 + rng.below(4));
  const auto count = parts > 2 && rng.chance(0.5) ? 2u : 1u;
  return {parts, static_cast<std::uint32_t>(rng.below(parts)), count};
}

}  // namespace

TEST_CASE("whatever members bring, all go on from the newest state that is there, as a search over granules finds it", "[settle]") {
  std::size_t older = 0, nothing = 0, with_next = 0;
  for_all_seeds(4000, [&](Rng& rng) {
    std::vector<UnitSpec> units;
    for (std::uint64_t u = 0; u < 1 + rng.below(2); ++u)
      units.push_back({std::to_string(u), {{"w", DType::f32, {1 + rng.below(9 * 1024)}, {}}}});
    const Layout layout = lay_out(units);
    const Sums sums = rng.chance(0.7) ? Sums::alike : Sums::of_generation;
    const auto generation = [&] { return Generation{1 + rng.below(3), {{1, 1}}}; };
    const Generation recut_in{9, {{1, 1}}};
    std::vector<MemberStatus> statuses;
    for (std::uint64_t r = 0; r < 1 + rng.below(7); ++r) {
      const std::uint64_t applied = 3 + rng.below(3);
      const bool voted = rng.chance(0.4), decided = voted && rng.chance(0.2);
      MemberStatus s = member(applied, applied + decided, applied + voted, any_cut(rng));
      s.has_state = rng.chance(0.9), s.has_host_state = rng.chance(0.9);
      s.knowledge.decided_in = generation(), s.knowledge.voted_in = generation();
      if (decided) s.knowledge.voted_in = s.knowledge.decided_in;
      if (!decided && rng.chance(0.2)) s.decision.count = 0;  // it got that state from elsewhere
      if (rng.chance(0.3)) s.saved_step = rng.below(applied + 1);
      if (rng.chance(0.2)) s.remembered_step = rng.below(applied + 1);
      if (rng.chance(0.2)) s.held.next = any_cut(rng), s.held.next_in = recut_in;
      statuses.push_back(s);
    }
    std::uint64_t saved = 0, known = 0;
    std::set<std::pair<std::uint64_t, std::uint64_t>> states;  // by steps, and the number of the generation
    for (const MemberStatus& s : statuses) {
      saved = std::max({saved, s.saved_step == never_saved ? 0 : s.saved_step, s.remembered_step});
      if (!s.has_state) continue;
      known = std::max(known, s.knowledge.decided);
      states.insert({s.knowledge.decided, s.knowledge.decided_in.number});
      if (sums == Sums::alike && s.knowledge.applied < s.knowledge.decided) states.insert({s.knowledge.applied, 0});
    }
    std::optional<std::pair<std::uint64_t, std::uint64_t>> wanted;
    bool new_shards = false;
    for (auto state = states.rbegin(); state != states.rend() && !wanted; ++state) {
      if (state != states.rbegin() && state->first < saved) break;
      if (sums == Sums::alike && state != states.rbegin() && std::prev(state)->first == state->first) continue;  // the newer one is as good
      const Generation in = state->second == 0 ? Generation{} : Generation{state->second, {{1, 1}}};
      for (const bool next : {false, true})
        if (!wanted && is_there(layout, statuses, sums, state->first, in, next)) wanted = *state, new_shards = next;
    }
    auto after = statuses;
    const Settled all = settle(layout, after, sums);
    CHECK(all.known_step == known);
    if (!wanted) {
      ++nothing;
      CHECK(all.newest_step == known);
    } else {
      older += wanted->first < known, with_next += new_shards;
      CHECK(all.newest_step == wanted->first);
      CHECK(all.decided_in.number == wanted->second);
    }
    CHECK(going_back_line(after, all).has_value() == (wanted.has_value() && wanted->first < known));
    for (const MemberStatus& s : after) CHECK(s.held.next_in.number == 0);
    bring_up_to_date(after, all, false);
    std::vector<Cut> cuts;
    for (const MemberStatus& s : after) cuts.push_back(s.held.cut);
    const StateTransfer transfer = plan_state_transfer(layout, after, all.newest_step, cuts);
    CHECK(transfer.complete == wanted.has_value());
    const bool has_any = std::ranges::any_of(statuses, &MemberStatus::has_state);
    CHECK(lost_state_line(after, all.newest_step, transfer, lost_members(after)).has_value() == (has_any && !wanted));
  });
  if (std::getenv("ELRUN_SEED") != nullptr) return;
  CHECK(older > 50);
  CHECK(nothing > 50);
  CHECK(with_next > 20);
}

namespace {

MemberStatus holding(MemberStatus s, std::vector<HeldCheckpoint> checkpoints, bool missed_none = true) {
  s.checkpoints = std::move(checkpoints);
  s.missed_none = missed_none;
  return s;
}
HeldCheckpoint part_of(std::uint64_t step, std::uint64_t taken_in, Cut cut) { return {step, {taken_in, {{1, 1}}}, cut}; }

}  // namespace

TEST_CASE("members without a whole state go on from the newest in-memory checkpoint that is whole", "[settle][in_memory]") {
  const HeldCheckpoint a = part_of(6, 3, {2, 0}), b = part_of(6, 3, {2, 1});
  const auto settle_all = [](std::vector<MemberStatus> statuses, SavedCheckpoint saved = {}) {
    return settle(forty(), statuses, Sums::alike, saved);
  };
  constexpr SavedCheckpoint none_saved{.is_newest = true};
  const Settled back = settle_all({holding(at_step(8, {3, 0}), {a}), holding(at_step(8, {3, 1}), {b}), newcomer()});
  REQUIRE(back.goes_to_memory);
  CHECK(back.in_memory->step == 6);
  CHECK(back.in_memory->taken_in == a.taken_in);
  CHECK(back.in_memory->held == std::vector<std::optional<Cut>>{a.cut, b.cut, std::nullopt});
  CHECK(back.known_step == 8);

  SECTION("a whole state of the members is newer than any") {
    const Settled on = settle_all({holding(at_step(8, {2, 0}), {a}), holding(at_step(8, {2, 1}), {b})});
    CHECK_FALSE(on.goes_to_memory);
    CHECK(on.newest_step == 8);
    CHECK(on.in_memory->step == 6);  // it is kept
  }
  SECTION("an older state that is whole counts where it has as many steps, and not where it has fewer") {
    for (const std::uint64_t older : {5u, 6u, 7u}) {
      const Settled all =
          settle_all({holding(at_step(8, {3, 0}), {a}), holding(at_step(older, {2, 0}), {b}), at_step(older, {2, 1}), newcomer()});
      CHECK(all.goes_to_memory == (older < 6));
      if (older >= 6) CHECK(all.newest_step == older);
    }
  }
  SECTION("parts of two checkpoints are no checkpoint") {
    CHECK_FALSE(settle_all({holding(at_step(8, {3, 0}), {a}), holding(at_step(8, {3, 1}), {part_of(6, 4, {2, 1})})}).in_memory);
    CHECK_FALSE(settle_all({holding(at_step(8, {3, 0}), {a}), holding(at_step(8, {3, 1}), {part_of(7, 3, {2, 1})})}).in_memory);
    HeldCheckpoint other = b;
    other.taken_in.lineage = {{1, 2}};
    CHECK_FALSE(settle_all({holding(at_step(8, {3, 0}), {a}), holding(at_step(8, {3, 1}), {other})}).in_memory);
  }
  SECTION("one that not all had yet is passed over for the one before it") {
    const Settled all = settle_all({holding(at_step(8, {3, 0}), {a, part_of(8, 3, {2, 0})}), holding(at_step(8, {3, 1}), {b})});
    CHECK(all.in_memory->step == 6);
    const Settled newer =
        settle_all({holding(at_step(8, {3, 0}), {a, part_of(8, 3, {2, 0})}), holding(at_step(8, {3, 1}), {b, part_of(8, 3, {2, 1})})});
    CHECK(newer.in_memory->step == 8);
    // Of one step, made anew in a later generation: the later one, where it is whole.
    const Settled anew =
        settle_all({holding(at_step(8, {3, 0}), {a, part_of(6, 4, {2, 0})}), holding(at_step(8, {3, 1}), {b, part_of(6, 4, {2, 1})})});
    CHECK(anew.in_memory->taken_in.number == 4);
  }
  SECTION("one that is older than the newest checkpoint on storage does not count") {
    for (const std::uint64_t saved : {5u, 6u, 7u})
      for (const bool remembered : {false, true}) {
        MemberStatus knows = newcomer();
        (remembered ? knows.remembered_step : knows.saved_step) = saved;
        CHECK(settle_all({holding(at_step(8, {3, 0}), {a}), holding(at_step(8, {3, 1}), {b}), knows}).goes_to_memory == (saved <= 6));
      }
    const Settled loads = settle_all({holding(spare_since(3, 8), {a}), holding(spare_since(3, 8), {b})}, {9, {4, first_lineage}});
    CHECK(loads.newer_checkpoint == 9);
    CHECK_FALSE(loads.in_memory);
  }
  SECTION("one on storage that is newer than the states of members, and not than it, is not gone on from") {
    for (const MemberStatus& one : {spare_since(3, 2), newcomer()})
      for (const std::uint64_t step : {4u, 6u, 7u}) {
        const Settled all = settle_all({holding(one, {a}), holding(one, {b}), newcomer()}, {step, {4, first_lineage}, true});
        CHECK(all.goes_to_memory == (step <= 6));
        CHECK(all.newer_checkpoint == (step <= 6 ? 0 : step));
      }
  }
  SECTION("whether a newer one was saved is asked where members hold parts of it, and what is on storage is gone on from") {
    const auto beyond = [](const std::vector<MemberStatus>& statuses) { return may_be_saved_beyond(forty(), statuses, Sums::alike); };
    std::vector<MemberStatus> statuses{holding(at_step(8, {3, 0}), {a, part_of(8, 3, {2, 0})}), holding(at_step(8, {3, 1}), {b})};
    CHECK(beyond(statuses) == 6);
    CHECK(settle_all(statuses, {7, {3, first_lineage}}).goes_to_memory == false);
    CHECK(settle_all(statuses, {6, {3, first_lineage}}).goes_to_memory);
    statuses[1].checkpoints.push_back(part_of(8, 3, {2, 1}));
    CHECK_FALSE(beyond(statuses));
    CHECK_FALSE(
        beyond({holding(at_step(8, {2, 0}), {a, part_of(8, 3, {2, 0})}), holding(at_step(8, {2, 1}), {b})}));  // they have a whole state
    CHECK_FALSE(beyond({at_step(8, {3, 0}), newcomer()}));
  }
  SECTION("it counts where one of its holders missed nothing, whether that one has a state or none") {
    const auto with = [&](bool first, bool second, bool third) {
      return settle_all({holding(at_step(8, {3, 0}), {a}, first), holding(newcomer(), {b}, second), holding(at_step(8, {3, 1}), {}, third)})
          .goes_to_memory;
    };
    CHECK(with(true, false, false));
    CHECK(with(false, true, false));
    CHECK_FALSE(with(false, false, true));
    CHECK_FALSE(with(false, false, false));
    // Without a storage, or where that was asked, nobody can have saved a newer one.
    const std::vector<MemberStatus> away{holding(at_step(8, {3, 0}), {a}, false), holding(newcomer(), {b}, false)};
    CHECK_FALSE(settle_all(away).goes_to_memory);
    CHECK(settle_all(away, none_saved).goes_to_memory);
    CHECK(settle_all(away, {.step = 6, .is_newest = true}).goes_to_memory);
    CHECK_FALSE(settle_all(away, {.step = 7, .is_newest = true}).goes_to_memory);
    CHECK(may_be_saved_beyond(forty(), away, Sums::alike) == 6);
  }
  SECTION("it counts where another coordinator began this generation, and nothing has to be asked") {
    std::vector<MemberStatus> statuses{holding(at_step(8, {3, 0}), {a}), holding(at_step(8, {3, 1}), {b}), newcomer()};
    for (MemberStatus& s : statuses) s.coordinator_changed = true;
    CHECK_FALSE(may_be_saved_beyond(forty(), statuses, Sums::alike));
    CHECK_FALSE(may_have_missed_saves(statuses));
    CHECK(settle_all(statuses).goes_to_memory);
    CHECK_FALSE(settle_all(statuses, {7, {3, other_lineage}}).goes_to_memory);  // the storage has a newer one
  }
  SECTION("where nobody goes on from one, that is kept of which all holders have their parts") {
    const HeldCheckpoint newer = part_of(8, 3, {2, 0}), other = part_of(8, 3, {2, 1});
    const auto kept = [&](std::vector<HeldCheckpoint> last) {
      return settle_all({holding(at_step(8, {2, 0}), {a, newer}), holding(at_step(8, {2, 1}), {b, other}),
                         holding(at_step(8, {2, 0}), std::move(last))})
          .in_memory->step;
    };
    CHECK(kept({a}) == 6);  // of its part of the newer one nobody else may have a copy
    CHECK(kept({a, newer}) == 8);
    CHECK(kept({}) == 8);  // it has come since
    CHECK(settle_all({holding(at_step(8, {3, 0}), {a, newer}), holding(at_step(8, {3, 1}), {b, other}), holding(at_step(8, {3, 0}), {a})})
              .in_memory->step == 8);
  }
  SECTION("whoever holds a part needs no state") {
    CHECK(settle_all({holding(newcomer(), {a}), holding(newcomer(), {b}), newcomer()}).goes_to_memory);
    CHECK_FALSE(settle_all({holding(newcomer(), {a}), newcomer()}).goes_to_memory);
  }
}

TEST_CASE("where all go back, it is said what was lost: a part of the state, or the host state", "[settle]") {
  const auto line = [](std::vector<MemberStatus> statuses, const PreviousNodes& known = {}) {
    const Settled all = settled(statuses);
    bring_up_to_date(statuses, all, false);
    const auto transfer = plan_state_transfer(forty(), statuses, all.newest_step, std::vector<Cut>(statuses.size()));
    return lost_state_line(statuses, all.newest_step, transfer, lost_members(statuses), known,
                           all.goes_to_memory ? std::optional{all.in_memory->step} : std::nullopt);
  };
  CHECK_FALSE(line({newcomer(), newcomer()}).has_value());
  CHECK_FALSE(line({at_step(5), newcomer()}).has_value());
  CHECK(line({at_step(5, {2, 0}), newcomer()}) ==
        "part of the state of step 5 was lost with a worker: all go back to the newest checkpoint, or to the beginning");
  // Three were together in generation 4; the first of these was in an older one alone.
  MemberStatus one = at_step(5, {2, 0}), two = at_step(5, {2, 0});
  one.before = {{3, {{1, 1}}}, 0, 2}, two.before = {{4, {{1, 1}}}, 1, 3};
  const LostMembers lost = lost_members(std::vector{one, newcomer(), two});
  CHECK(lost.generation == two.before.generation);
  CHECK(lost.teller == 2);
  CHECK(lost.ranks == std::vector<std::uint32_t>{0, 2});
  CHECK(lost_members(std::vector{two, one}).ranks == lost.ranks);
  CHECK(line({one, newcomer(), two}) == "part of the state of step 5 was lost with rank 0 and rank 2 of generation " +
                                            to_string(lost.generation) + ": all go back to the newest checkpoint, or to the beginning");
  // Each knows the nodes of its own last generation: they are those of the lost ones only where these were in it.
  CHECK(line({one, newcomer(), two}, {lost.generation, {"a", "b", "c"}}) ==
        "part of the state of step 5 was lost with rank 0 (node a) and rank 2 (node c) of generation " + to_string(lost.generation) +
            ": all go back to the newest checkpoint, or to the beginning");
  CHECK(line({holding(one, {part_of(2, 3, {})}), newcomer(), two}, {lost.generation, {"a", "b", "c"}}) ==
        "part of the state of step 5 was lost with rank 0 (node a) and rank 2 (node c) of generation " + to_string(lost.generation) +
            ": all go back to the in-memory checkpoint of step 2. 3 steps are repeated");
  CHECK(line({one, newcomer(), two}, {one.before.generation, {"d", "e", "f"}}) == line({one, newcomer(), two}));
  CHECK(line({one, newcomer(), two}, {{4, {{2, 1}}}, {"d", "e", "f"}}) == line({one, newcomer(), two}));  // as many, and another lineage
  // It got parameters and moments from a worker that was lost before all had come to next_step().
  MemberStatus half = at_step(5);
  half.has_host_state = false;
  CHECK(line({half, newcomer()}) ==
        "the host state (what the program registered with job.state) of step 5 was lost with a worker: all go back to the newest "
        "checkpoint, or to the beginning");
}

TEST_CASE("an update that is left out leaves all parameters up to date", "[settle]") {
  std::vector<MemberStatus> statuses{member(5, 5, 5), member(4, 4, 5)};
  statuses[0].decision.finite = false;
  bring_up_to_date(statuses, settled(statuses), false);
  CHECK(statuses[1].whole_parameters);
}

TEST_CASE("members that applied the newest step with other values than those that will are told apart", "[settle]") {
  std::vector<MemberStatus> statuses{member(5, 5, 5), member(4, 4, 5)};
  statuses[0].decision.update = {.kind = 1, .bits = {1}};
  statuses[1].voted_update = {.kind = 1, .bits = {1}};
  CHECK(check_same_update(statuses, 5).ok());
  statuses[1].voted_update.bits[0] = 2;
  CHECK_FALSE(check_same_update(statuses, 5).ok());
}

TEST_CASE("who has all parameters of the step of an in-memory checkpoint keeps them", "[settle][in_memory]") {
  const CompleteCheckpoint from{.step = 6, .taken_in = {3, {{1, 1}}}, .held = {}};
  std::vector<MemberStatus> statuses(5, at_step(6, {3, 0}));
  for (MemberStatus& s : statuses) s.whole_parameters = true;
  statuses[1].knowledge.applied = 7;
  statuses[2].has_state = false;  // a mixture, or nothing
  statuses[3].whole_parameters = false;
  CHECK(have_parameters_of(from, statuses, Sums::alike) == std::vector{true, false, false, false, true});
  // As many steps with other sums are another state.
  CHECK(have_parameters_of(from, statuses, Sums::of_generation) == std::vector<bool>(5));
}

}  // namespace elrun::test
