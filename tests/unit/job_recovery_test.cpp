// GenerationRecovery without a job: the stages of a generation's recovery, and what members tell each other in them.

#include "lib/job/recover/generation_recovery.hpp"

#include <array>

#include <fmt/ranges.h>

#include "lib/job/evaluate/evaluation.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

using Stage = GenerationRecovery::Stage;

MemberStatus trained(std::uint64_t applied, const char* node = "n") {
  MemberStatus s{.has_state = true, .has_begun = true, .is_past_restore = true, .knowledge = {applied, applied, applied}, .node = node};
  s.decision.count = applied;
  return s;
}

/// Calls `then` on each rank once the statuses are known; what it throws, by rank.
std::vector<std::string> after_gather(const std::vector<MemberStatus>& statuses,
                                      const std::function<void(GenerationRecovery&, JobWorld&, std::uint32_t)>& then) {
  std::vector<std::string> said(statuses.size());
  in_world(static_cast<std::uint32_t>(statuses.size()), [&](JobWorld& world, std::uint32_t rank) {
    try {
      GenerationRecovery recovery;
      recovery.gather(world, statuses[rank]);
      recovery.settle(lay_out(two_units()), Sums::alike);
      then(recovery, world, rank);
    } catch (const Error& e) {
      said[rank] = e.failure().what;
    }
  });
  return said;
}

/// The same once the transfer is planned, for replicated state.
std::vector<std::string> after_share(const std::vector<MemberStatus>& statuses,
                                     const std::function<void(GenerationRecovery&, JobWorld&, std::uint32_t)>& then) {
  return after_gather(statuses, [&](GenerationRecovery& recovery, JobWorld& world, std::uint32_t rank) {
    recovery.end_settling(true);
    (void)recovery.plan_transfer(lay_out(two_units()), one_node(Sharding::replicated, world.size()));
    recovery.share();
    recovery.state_came(world.membership());
    then(recovery, world, rank);
  });
}

}  // namespace

TEST_CASE("the stages of a recovery follow each other, and a new generation begins with the first", "[recovery]") {
  std::atomic<int> right{0};
  after_gather({trained(5), MemberStatus{}}, [&](GenerationRecovery& recovery, JobWorld& world, std::uint32_t) {
    right += recovery.stage() == Stage::joining;
    recovery.end_settling(true);
    right += recovery.stage() == Stage::settled && recovery.settled().newest_step == 5;
    const StateTransfer& transfer = recovery.plan_transfer(lay_out(two_units()), one_node(Sharding::replicated, world.size()));
    right += transfer.complete && transfer.newcomers == std::vector{false, true} && recovery.giver().knowledge.applied == 5;
    recovery.share(), recovery.state_came(world.membership());
    right += recovery.stage() == Stage::shared && !recovery.is_ready();
    right += recovery.runs_evaluations(0) && !recovery.runs_evaluations(1);  // the newcomer serves
    recovery.finish();
    right += recovery.is_ready() && recovery.runs_evaluations(1);
    recovery.begin();
    right += recovery.stage() == Stage::joining;
  });
  CHECK(right == 2 * 7);
}

TEST_CASE("a member has missed none while it has a place in each generation after one in which all had the state", "[recovery]") {
  GenerationRecovery recovery;
  const auto attends = [&](std::uint64_t number) { return recovery.attend({number, {{2, 3}}}), recovery.missed_none(); };
  const auto shares = [&](std::uint64_t number) { recovery.share(), recovery.state_came({{number, {{2, 3}}}, Rank{0}, WorldSize{1}}); };
  CHECK_FALSE(attends(1));  // it has no state yet
  shares(4);
  CHECK(attends(5));
  CHECK(attends(6));        // 5 ended before all had the state, so nobody took a step there without this member
  CHECK(attends(6));        // the same, settled again
  CHECK_FALSE(attends(8));  // others had 7
  CHECK_FALSE(attends(9));  // what came of 7 is as unknown as before
  shares(9);
  CHECK(attends(10));
  GenerationRecovery next;  // of the program's next run in this process
  next.continue_from(recovery);
  CHECK(next.missed_none() == false);
  next.attend({11, {{2, 3}}});
  CHECK(next.missed_none());
  CHECK_FALSE(next.coordinator_changed());
}

TEST_CASE("a member knows that another coordinator began its generation, until all have the state there or the storage has answered",
          "[recovery]") {
  constexpr Lineage first{{2, 3}}, second{{4, 5}}, third{{6, 7}};
  GenerationRecovery recovery;
  const auto attends = [&](std::uint64_t number, Lineage lineage) {
    recovery.attend({number, lineage});
    return std::pair{recovery.missed_none(), recovery.coordinator_changed()};
  };
  const auto shares = [&](const Generation& here) { recovery.share(), recovery.state_came({here, Rank{0}, WorldSize{1}}); };
  shares({4, first});
  CHECK(attends(5, first) == std::pair{true, false});
  CHECK(attends(6, second) == std::pair{true, true});  // the first one may have begun a 6 with others
  CHECK(attends(7, second) == std::pair{true, true});  // 6 ended before all had the state
  SECTION("all have the state") {
    shares({7, second});
    CHECK(attends(8, second) == std::pair{true, false});
    CHECK(attends(9, third) == std::pair{true, true});
  }
  SECTION("the storage has answered") {
    recovery.know_what_was_saved({7, second});
    CHECK(attends(8, second) == std::pair{true, false});
    CHECK(attends(10, second) == std::pair{false, false});  // numbers count as ever
  }
  SECTION("in the program's next run, too") {
    GenerationRecovery next;
    next.continue_from(recovery);
    next.attend({8, second});
    CHECK(next.missed_none());
    CHECK(next.coordinator_changed());
  }
}

TEST_CASE("parameters are known to be alike where all members bring them from the generation of their newest step", "[recovery]") {
  const Generation first{1, {{2, 3}}}, second{2, {{2, 3}}};
  const auto from = [](const Generation& decided_in, const Generation& before) {
    MemberStatus s = trained(5);
    s.knowledge.decided_in = decided_in;
    s.before = {before, 0, 2};
    return s;
  };
  const auto known = [](const std::vector<MemberStatus>& statuses) {
    std::atomic<int> alike{0}, differ{0};
    after_share(statuses, [&](GenerationRecovery& recovery, JobWorld&, std::uint32_t) { ++(recovery.were_compared() ? alike : differ); });
    REQUIRE(alike + differ == static_cast<int>(statuses.size()));
    REQUIRE((alike == 0 || differ == 0));
    return alike > 0;
  };
  const MemberStatus one = from(first, first);
  CHECK(known({one, one}));
  CHECK_FALSE(known({one, MemberStatus{}}));  // a newcomer gets them
  CHECK_FALSE(
      known({from(first, second), from(first, second)}));  // no step was decided in the second: it may have ended before the comparison
  MemberStatus half = one;
  half.whole_parameters = false;
  CHECK_FALSE(known({one, half}));
  MemberStatus behind = one;
  behind.knowledge = {4, 4, 4, first};
  behind.decision.count = 4;
  CHECK_FALSE(known({one, behind}));
}

TEST_CASE("ranks on one node have one number, in the order of their first ranks", "[recovery]") {
  std::atomic<int> right{0};
  after_gather({trained(1, "z"), trained(1, "a"), trained(1, "z")}, [&](GenerationRecovery& recovery, JobWorld&, std::uint32_t) {
    right += recovery.nodes() == std::vector<std::uint32_t>{0, 1, 0};
  });
  CHECK(right == 3);
}

TEST_CASE("members that applied the last step with other values end with the same message", "[recovery]") {
  std::vector<MemberStatus> statuses{trained(5), trained(5)};
  statuses[0].decision.update = {.kind = 1, .bits = {1}};
  statuses[1].decision.update = {.kind = 1, .bits = {2}};
  const auto said = after_gather(statuses, [](GenerationRecovery&, JobWorld&, std::uint32_t) {});
  CHECK_FALSE(said[0].empty());
  CHECK(said[0] == said[1]);
}

TEST_CASE("while a member that was there before evaluates, newcomers know it, and one at the next step is an error", "[recovery]") {
  std::atomic<int> evaluate{0};
  const auto ask = [&](const std::vector<MemberStatus>& statuses, const std::vector<bool>& evaluates) {
    evaluate = 0;
    return after_share(statuses, [&](GenerationRecovery& recovery, JobWorld& world, std::uint32_t rank) {
      evaluate += recovery.somebody_evaluates(world, evaluates[rank], 5);
    });
  };
  CHECK(ask({trained(5), MemberStatus{}}, {true, false}) == std::vector<std::string>(2));
  CHECK(evaluate == 2);
  CHECK(ask({trained(5), MemberStatus{}}, {false, false}) == std::vector<std::string>(2));
  CHECK(evaluate == 0);
  for (const std::string& said : ask({trained(5), trained(5)}, {false, true}))
    CHECK_THAT(said, Catch::Contains("rank 1 is in job.evaluate() and rank 0 in job.next_step() after step 5"));
  CHECK(ask({MemberStatus{}, MemberStatus{}}, {false, false}) == std::vector<std::string>(2));  // all begin: nobody is asked
}

TEST_CASE("an evaluation that another member decided is taken from it, if it followed the same step", "[recovery]") {
  std::vector<MemberStatus> statuses{trained(5), trained(5), trained(4)};
  statuses[1].evaluations = 3, statuses[1].evaluation = encode(Evaluation{.loss = 0.5f, .decided = true});
  statuses[2].evaluations = 2;
  std::atomic<int> right{0};
  after_gather(statuses, [&](GenerationRecovery& recovery, JobWorld&, std::uint32_t) {
    const auto known = recovery.evaluation_decided_elsewhere(5, 2);
    right += known.has_value() && decode_evaluation(*known)->loss == 0.5f;
    right += !recovery.evaluation_decided_elsewhere(5, 3).has_value();  // this member knows it, too
    right += !recovery.evaluation_decided_elsewhere(5, 1).has_value();  // that one followed an earlier step
  });
  CHECK(right == 3 * 3);
}

TEST_CASE("a newcomer joins a job that runs where a member is in its loop, or comes back to its place there", "[recovery]") {
  const auto runs = [](const MemberStatus& first) {
    int said = 0;
    std::mutex mutex;
    after_share({first, MemberStatus{}}, [&](GenerationRecovery& recovery, JobWorld&, std::uint32_t) {
      const std::lock_guard lock{mutex};
      said += recovery.somebody_runs();
    });
    return said;
  };
  MemberStatus first = trained(3);
  CHECK(runs(first) == 2);
  first.is_past_restore = false;
  CHECK(runs(first) == 0);  // it has loaded a checkpoint, and the world was lost before restore() returned
  first.keeps_position = true;
  CHECK(runs(first) == 2);
  first.has_state = false;
  CHECK(runs(first) == 0);  // a checkpoint is loaded: its place is nobody's any more
}

TEST_CASE("the state of newcomers may take as long as it does at 100 MB/s, one after the other", "[recovery]") {
  StateTransfer transfer{.held = {Cut{}, std::nullopt, std::nullopt, Cut{}}};
  CHECK(time_for(transfer, 84'000'000'000) == 1680s);
  transfer.held = {Cut{}, Cut{}};  // cut anew
  CHECK(time_for(transfer, 84'000'000'000) == 840s);
}

TEST_CASE("exchanges beside come one after the other, and what follows waits for all of them", "[world]") {
  for (const bool fails : {false, true}) {
    std::array<std::vector<std::string>, 2> seen;
    in_world(2, [&](JobWorld& world, std::uint32_t rank) {
      std::vector<std::string>& mine = seen[rank];
      std::array<std::uint32_t, 2> sent{rank, rank + 10}, got{};
      const std::uint32_t other = 1 - rank;
      for (std::size_t i = 0; i < sent.size(); ++i) {
        std::vector<SendList> sends(2);
        sends[other].push_back(std::as_bytes(std::span{&sent[i], 1}));
        world.exchange_beside(
            std::move(sends), std::vector<ReceiveList>(2), Call::state,
            [&mine, &got, i] { mine.push_back(fmt::format("{} came", got[i])); },
            [&, i](std::vector<ReceiveList>& receives) {
              mine.push_back(fmt::format("{} begins", i));
              receives[other].push_back(std::as_writable_bytes(std::span{&got[i], 1}));
              if (fails && i == 0) world.end({Code::peer_lost, Remedy::rejoin, "lost"});
            });
      }
      mine.push_back(world.exchange(std::vector<SendList>(2), std::vector<ReceiveList>(2)).ok() ? "done" : "failed");
      (void)world.finish_beside();
    });
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      INFO(fmt::format("{}", fmt::join(seen[rank], ", ")));
      if (fails) CHECK(seen[rank].back() == "failed");
      else
        CHECK(seen[rank] == std::vector<std::string>{"0 begins", fmt::format("{} came", 1 - rank), "1 begins",
                                                     fmt::format("{} came", 11 - rank), "done"});
      if (fails) CHECK(std::ranges::find(seen[rank], "1 begins") == seen[rank].end());
    }
  }
}

}  // namespace elrun::test
