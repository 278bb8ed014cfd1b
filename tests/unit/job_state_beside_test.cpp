// State that travels to newcomers while the others compute: when it does, who computes meanwhile, and what a loss on the way leaves.

#include <condition_variable>
#include <map>
#include <mutex>

#include "lib/job/declare/assign.hpp"
#include "lib/job/recover/state_transfer.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

constexpr std::uint64_t always = 1;  // byte per second: no step takes as long as the state

std::uint64_t undisturbed() {
  static const std::uint64_t hash = run_world({.world = 1}, toy({.plan = toy_plan(0)}))[0].outcome->state_hash;
  return hash;
}

MemberStatus trained(std::uint64_t steps, Duration slot) {
  MemberStatus s{.has_state = true, .has_begun = true, .knowledge = {steps, steps, steps}};
  s.slot = slot;
  s.before.world = 2;
  return s;
}

/// Two members have all of the state, and a third has nothing.
StateTransfer to_third() {
  return {.found = true, .complete = true, .held = {Cut{}, Cut{}, std::nullopt}, .newcomers = {false, false, true}, .moves = true};
}

}  // namespace

TEST_CASE("state goes beside slots where that is the shorter wait", "[beside]") {
  const std::vector<MemberStatus> statuses{trained(5, 1s), trained(5, 2s), MemberStatus{}};
  // Of eight slots three ranks have three at most, and two have four: that is one more, of two seconds. With a margin that is three seconds.
  const TransferFacts facts{.state_bytes = 3'100, .rate = 1'000, .slots_left = 8, .ranks_compute_apart = true};
  CHECK(goes_beside(to_third(), statuses, 5, facts));
  const auto with = [&](const auto& change) {
    TransferFacts other = facts;
    change(other);
    return goes_beside(to_third(), statuses, 5, other);
  };
  CHECK_FALSE(with([](TransferFacts& f) { f.state_bytes = 3'000; }));
  CHECK(with([](TransferFacts& f) { f.state_bytes = 1'000, f.slots_left = 2; }));  // nobody has one more
  CHECK_FALSE(with([](TransferFacts& f) { f.slots_left = 0; }));
  CHECK_FALSE(with([](TransferFacts& f) { f.rate = 0; }));
  CHECK_FALSE(with([](TransferFacts& f) { f.ranks_compute_apart = false; }));
  CHECK_FALSE(goes_beside(to_third(), statuses, 0, facts));  // programs may still write values
  StateTransfer whole = to_third();
  whole.held[2] = Cut{};
  CHECK_FALSE(goes_beside(whole, statuses, 5, facts));  // host state alone is missing
  StateTransfer parts = to_third();
  parts.complete = false;
  CHECK_FALSE(goes_beside(parts, statuses, 5, facts));

  // Newcomers of two nodes get it at the same time, those of one node one after the other.
  std::vector<MemberStatus> four{trained(5, 2s), trained(5, 2s), MemberStatus{.node = "a"}, MemberStatus{.node = "b"}};
  StateTransfer two = to_third();
  two.held.emplace_back(), two.newcomers.push_back(true);
  const TransferFacts twice{.state_bytes = 4'000, .rate = 1'000, .slots_left = 8, .ranks_compute_apart = true};  // 2 slots more
  CHECK_FALSE(goes_beside(two, four, 5, twice));
  four[3].node = "a";
  CHECK(goes_beside(two, four, 5, twice));

  // A checkpoint that the step begins with waits for the state, if it is not there yet.
  CHECK_FALSE(with([](TransferFacts& f) { f.is_saved_by_number = true; }));
  std::vector<MemberStatus> saved = statuses;
  saved[0].saved_step = 5;
  TransferFacts by_number = facts;
  by_number.is_saved_by_number = true;
  CHECK(goes_beside(to_third(), saved, 5, by_number));

  // Two ranks need three buffers for whole gradients of four slots, and three ranks two: so many were there where the world before had two, and not in one of three.
  std::vector<MemberStatus> as_many = statuses;
  for (const std::size_t giver : {0u, 1u}) as_many[giver].before.world = 3;
  CHECK_FALSE(goes_beside(to_third(), as_many, 5, facts));

  CHECK(slots_beside(to_third(), statuses, 8) == 8s);

  StateTransfer beside = to_third();
  CHECK(beside.computes() == std::vector{true, true, true});
  beside.beside = true;
  CHECK(beside.computes() == std::vector{true, true, false});
}

TEST_CASE("the others run slots before the state has come to a newcomer", "[beside]") {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_on_its_way = false, computes = false, came_too_early = false;
  ToyOptions options{.plan = toy_plan(0)};
  options.in_slot = [&](Job&, std::uint64_t, Slot&) {
    const std::lock_guard lock{mutex};
    if (is_on_its_way) computes = true, changed.notify_all();
  };
  // The newcomer gets nothing until a slot has begun.
  const auto holds_back = [&](bool receives) {
    if (!receives) return;
    std::unique_lock lock{mutex};
    is_on_its_way = true;
    came_too_early |= !changed.wait_for(lock, 60s, [&] { return computes; });
  };
  ElasticWorld world{2, {{Fate::Kind::grows, 0, 20, false}}, toy(options), {}, {}, {}, false, always, holds_back};
  for (const Member& m : world.wait()) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == undisturbed());
    CHECK(m.host_state == 7);
  }
  CHECK(is_on_its_way);
  CHECK_FALSE(came_too_early);
  CHECK(std::ranges::any_of(world.lines(), [](const std::string& l) {
    return l.find("1 of 3 workers get the state from the others, which compute meanwhile") != l.npos;
  }));
}

TEST_CASE("a newcomer has no slots in the first step of its world, and its share from the second on", "[beside]") {
  struct OfStep {
    std::map<std::uint32_t, std::vector<std::uint32_t>> slots;  // by rank
    std::vector<std::uint64_t> first, ahead;  // samples of rank 0: of its first slot, and those that it expects after its last one
  };
  std::mutex mutex;
  std::map<std::uint64_t, OfStep> ran;                          // by step, in a world of three
  std::map<std::uint64_t, std::vector<std::uint64_t>> between;  // what rank 0 expects after the step
  ToyOptions options{.plan = toy_plan(0)};
  options.in_slot = [&](Job& job, std::uint64_t step, Slot& slot) {
    if (JobAccess::world_size(job) != 3) return;
    const std::lock_guard lock{mutex};
    OfStep& here = ran[step];
    const std::uint32_t rank = JobAccess::rank(job);
    here.slots[rank].push_back(slot.index());
    if (rank != 0) return;
    if (here.slots[0].size() == 1) here.first.assign(slot.samples().begin(), slot.samples().end());
    const auto ahead = job.samples_ahead(1);
    here.ahead = ahead.empty() ? std::vector<std::uint64_t>{} : ahead[0];
  };
  options.between = [&](Job& job, std::uint64_t steps) {
    if (JobAccess::world_size(job) != 3 || JobAccess::rank(job) != 0) return;
    const std::lock_guard lock{mutex};
    if (const auto next = job.samples_ahead(1); !next.empty()) between[steps - 1] = next[0];
  };
  ElasticWorld world{2, {{Fate::Kind::grows, 0, 20, false}}, toy(options), {}, {}, {}, false, always};
  (void)world.wait();
  REQUIRE(ran.size() >= 2);
  const auto first = ran.begin();
  CHECK(first->second.slots.count(2) == 0);
  CHECK(first->second.slots[0].size() == 4);
  CHECK(first->second.slots[1].size() == 4);
  CHECK(first->second.ahead == std::next(first)->second.first);
  CHECK(between.at(first->first) == std::next(first)->second.first);
  for (auto step = std::next(first); step != ran.end(); ++step) {
    INFO("step " << step->first);
    for (const std::uint32_t rank : {0u, 1u, 2u}) CHECK(step->second.slots[rank] == assign_slots(8, 3)[rank]);
  }
}

TEST_CASE("a loss while the state is on its way leaves the others theirs, and nobody a part of it", "[beside]") {
  Selection selection;
  for (const std::uint32_t whom : {0u, 1u, 2u})
    for (const bool comes_back : {true, false})
      for (std::uint64_t at = 0; at < 24; ++at) {
        if (!selection.takes()) continue;
        INFO("rank " << whom << " dies at exchange " << at << (comes_back ? ", and comes back" : ""));
        ElasticWorld world{2,
                           {{Fate::Kind::grows, 0, 20, false}, {Fate::Kind::dies, whom, at, comes_back}},
                           toy({.plan = toy_plan(0)}),
                           {},
                           {},
                           {},
                           false,
                           always};
        const auto& results = world.wait();
        for (std::size_t i = 0; i < results.size(); ++i) {
          if (world.was_killed(i)) continue;
          INFO("member " << i << (results[i].failure ? ": " + message(*results[i].failure) : ""));
          REQUIRE(results[i].outcome.has_value());
          CHECK(results[i].outcome->state_hash == undisturbed());
          CHECK(results[i].host_state == 7);
          for (std::size_t s = 1; s < results[i].steps.size(); ++s) CHECK(results[i].steps[s].step == results[i].steps[s - 1].step + 1);
        }
      }
}

TEST_CASE("a member with an old state that loses its givers before the new one came knows that it may have missed checkpoints",
          "[beside]") {
  // One is cut off with an old state; the others train on and save. It comes back, and they are lost with their node before their state has come.
  std::size_t beside = 0;
  for (const std::uint64_t grows : {32, 33, 34, 35})
    for (std::uint64_t at = 0; at < 9; ++at) {
      INFO("it comes back at exchange " << grows << "; the others die at exchange " << at << " of that world");
      const TemporaryDirectory directory;
      std::mutex mutex;
      std::map<std::uint64_t, std::uint64_t> first;  // by generation: the first step of which a slot ran
      ToyOptions options{.plan = toy_plan(0), .checkpoint = {.directory = directory.path(), .every = 2}};
      options.in_slot = [&](Job& job, std::uint64_t step, Slot&) {
        const std::lock_guard lock{mutex};
        first.try_emplace(JobAccess::host(job).session.place().membership.generation.number, step);
      };
      Fate cut{Fate::Kind::splits, 0, 20, false};
      cut.excluded = true;
      ElasticWorld world{
          3,     {cut, {Fate::Kind::grows, 0, grows, false}, {Fate::Kind::dies, 1, at, true, true}}, toy(options), {0, 1, 1}, {}, {}, false,
          always};
      (void)world.wait();
      if (!first.contains(2) || !first.contains(4)) continue;  // the job was over
      CAPTURE(first[2], first[4]);
      CHECK(first[4] > first[2]);
      beside += static_cast<std::size_t>(
          std::ranges::count_if(world.lines(), [](const std::string& l) { return l.find("compute meanwhile") != l.npos; }));
    }
  CHECK(beside > 0);
}

}  // namespace elrun::test
