// State that travels to newcomers while the others compute: when it does, who computes meanwhile, and what a loss on the way leaves.

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "lib/job/declare/assign.hpp"
#include "lib/job/recover/state_transfer.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/placed_world.hpp"

#include <elrun/verify.hpp>

namespace elrun::test {
namespace {

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

  // Shards that are cut anew cost nobody a slot, and a thread is worth a millisecond. Who would compute has all parameters.
  std::vector<MemberStatus> all{trained(5, 1s), trained(5, 2s)};
  StateTransfer recut{.found = true, .complete = true, .held = {Cut{3, 0}, Cut{3, 1}}, .newcomers = {false, false}, .moves = true};
  TransferFacts shards = facts;
  shards.shard_bytes = 1;
  CHECK_FALSE(goes_beside(recut, all, 5, shards));
  recut.recuts = true;
  CHECK(goes_beside(recut, all, 5, shards));
  shards.rate = 1'001;
  CHECK_FALSE(goes_beside(recut, all, 5, shards));
  shards.rate = 1'000;
  CHECK_FALSE(goes_beside(recut, all, 0, shards));
  CHECK(recut.computes() == std::vector{true, true});
  all[1].whole_parameters = false;
  CHECK_FALSE(goes_beside(recut, all, 5, shards));

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
  options.in_slot = [&](Job& job, std::uint64_t, Slot&) {
    const std::lock_guard lock{mutex};
    if (JobAccess::world_size(job) == 3) computes = true, changed.notify_all();
  };
  // The newcomer gets nothing until a slot of that world has begun.
  const auto holds_back = [&](bool receives) {
    if (!receives) return;
    std::unique_lock lock{mutex};
    is_on_its_way = true;
    came_too_early |= !changed.wait_for(lock, 60s, [&] { return computes; });
  };
  ElasticWorld world{2, {{Fate::Kind::grows, 0, 20, false}}, toy(options), {}, {}, {}, false, beside_slots, holds_back};
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
  ElasticWorld world{2, {{Fate::Kind::grows, 0, 20, false}}, toy(options), {}, {}, {}, false, beside_slots};
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
                           beside_slots};
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
      ElasticWorld world{3,
                         {cut, {Fate::Kind::grows, 0, grows, false}, {Fate::Kind::dies, 1, at, true, true}},
                         toy(options),
                         {0, 1, 1},
                         {},
                         {},
                         false,
                         beside_slots};
      (void)world.wait();
      if (!first.contains(2) || !first.contains(4)) continue;  // the job was over
      CAPTURE(first[2], first[4]);
      CHECK(first[4] > first[2]);
      beside += static_cast<std::size_t>(
          std::ranges::count_if(world.lines(), [](const std::string& l) { return l.find("compute meanwhile") != l.npos; }));
    }
  CHECK(beside > 0);
}

TEST_CASE("members run slots before their new shards have come, those of evaluations, too", "[beside]") {
  std::size_t beside = 0;
  for (const bool evaluates : {false, true})
    for (const int stage : {1, 2})
      for (const Placement& placement : {mirrored(zero(stage)), zero(stage)})
        for (std::uint64_t at = 19; at < 27; ++at) {
          const bool is_mirrored = placement == mirrored(zero(stage));
          INFO(*name_of(placement) << (evaluates ? ", with evaluations" : "") << ", at exchange " << at);
          std::mutex mutex;
          std::condition_variable changed;
          bool is_on_its_way = false, computes = false, came_too_early = false;
          const auto is_there = [&](Job& job) {
            const std::lock_guard lock{mutex};
            if (JobAccess::host(job).session.place().membership.generation.number == 2) computes = true, changed.notify_all();
          };
          ToyOptions options{.plan = toy_plan(0)};
          options.plan.placement = placement;
          options.in_slot = [&](Job& job, std::uint64_t, Slot&) { is_there(job); };
          if (evaluates)
            options.between = [&](Job& job, std::uint64_t) {
              (void)job.evaluate(10, [&](Slot& slot) { is_there(job), slot.report(1, 1); });
            };
          // Nobody gets anything until a slot of that world has begun.
          const auto holds_back = [&](bool) {
            std::unique_lock lock{mutex};
            is_on_its_way = true;
            came_too_early |= !changed.wait_for(lock, 60s, [&] { return computes; });
          };
          // A loss leaves all of the state where it is mirrored; else the world grows.
          const Fate fate = is_mirrored ? Fate{Fate::Kind::dies, 2, at, false} : Fate{Fate::Kind::grows, 0, at, false};
          ElasticWorld world{3, {fate}, toy(options), {0, 1, 2, 0}, {}, {}, false, beside_slots, holds_back};
          auto& results = world.wait();
          for (std::size_t i = 0; i < results.size(); ++i)
            if (!world.was_killed(i)) ended_alike(results[i]);
          CHECK_FALSE(came_too_early);
          beside += is_on_its_way;
        }
  CHECK(beside > 20);
}

TEST_CASE("a job that is stopped, and a comparison of copies, wait for shards that are on their way", "[beside]") {
  // A loss cuts the shards anew. No slots follow where it is at the job's end, and verify() comes before them.
  std::atomic<std::size_t> beside = 0;
  const auto run = [&](std::vector<Fate> fates, bool compares) {
    ToyOptions options{.plan = placed_plan(mirrored, 1)};
    options.between = [](Job& job, std::uint64_t steps) {
      if (steps == 4) job.stop();
    };
    if (compares)
      options.before_slots = [](Job& job) {
        const Verification found = verify(job);
        if (found.difference) throw Error{Failure{Code::corrupt, Remedy::exit_process, found.difference->what}};
      };
    // Long enough for whoever does not wait to read what has not come.
    const auto is_slow = [&](bool) { ++beside, std::this_thread::sleep_for(2ms); };
    auto world = std::make_unique<ElasticWorld>(3, std::move(fates), toy(options), Nodes{0, 1, 2},
                                                std::function<std::unique_ptr<Memory>()>{}, DeviceGroups{}, false, beside_slots, is_slow);
    (void)world->wait();
    return world;
  };
  for (const bool compares : {false, true}) {
    const std::uint64_t stopped = run({}, compares)->wait()[0].outcome->state_hash;
    for (std::uint64_t at = 12; at < 48; ++at) {
      INFO("at exchange " << at << (compares ? ", with verify" : ""));
      const auto world = run({{Fate::Kind::dies, 1, at, false}}, compares);
      for (const std::size_t survivor : {0u, 2u}) {
        const Member& m = world->wait()[survivor];
        INFO((m.failure ? message(*m.failure) : ""));
        REQUIRE(m.outcome.has_value());
        CHECK(m.outcome->state_hash == stopped);
      }
    }
  }
  CHECK(beside > 0);
}

TEST_CASE("who voted again, with its new shard, for a step that another member knows to be decided before applies it to that shard",
          "[beside]") {
  // The first alone hears the votes, and is cut off. The other two cut the shards anew, vote again, and hear from it that the step was decided.
  for (std::uint64_t at = 14; at < 34; ++at)
    for (const std::uint64_t grows : {7u, 9u, 11u}) {
      INFO("one alone hears exchange " << at << ", and comes back at exchange " << grows);
      ElasticWorld world{3,
                         {{.kind = Fate::Kind::splits, .whom = 0, .at = at, .excluded = true}, {Fate::Kind::grows, 0, grows, false}},
                         toy({.plan = placed_plan(mirrored, 1)}),
                         {0, 1, 2},
                         {},
                         {},
                         false,
                         beside_slots};
      for (const Member& m : world.wait()) ended_alike(m);
    }
}

TEST_CASE("a member with an old state whose parameters are not whole says so until the new one has come", "[beside]") {
  // A node is cut off while parameters are gathered, and comes back. The other one, with the newer state, is lost before that has come.
  for (std::uint64_t at = 16; at < 26; ++at)
    for (std::uint64_t dies = 4; dies < 10; ++dies) {
      INFO("cut off at exchange " << at << "; the others die at exchange " << dies << " of the world in which they meet again");
      ElasticWorld world{4,
                         {{.kind = Fate::Kind::splits, .whom = 0, .at = at, .excluded_node = 1},
                          {Fate::Kind::grows, 0, 14, false},
                          {Fate::Kind::dies, 0, dies, false, true}},
                         toy({.plan = placed_plan(mirrored, 1)}),
                         {0, 0, 1, 1},
                         {},
                         {},
                         false,
                         beside_slots};
      auto& results = world.wait();
      for (std::size_t i = 0; i < results.size(); ++i)
        if (!world.was_killed(i) && !world.was_refused(i)) ended_alike(results[i]);
    }
}

}  // namespace elrun::test
