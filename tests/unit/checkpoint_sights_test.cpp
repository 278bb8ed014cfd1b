/// \file Ranks that see another storage than the leader of their start: what is concluded from what they say, and that nothing is written before that.

#include "checkpoint/commit/sights.hpp"
#include "tests/support/checkpoint_job.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

const std::string this_run(32, 'a'), other_run(32, 'b');
const CheckpointId ten{10, 1, 1}, twenty{20, 1, 1};

/// As a leader finds a root: with a fence, and with these checkpoints, all acknowledged.
RootView seen(std::vector<CheckpointId> ids, FenceNumber fence = 1) {
  RootView view{.where = "/ck", .root = this_run, .newest_fence = fence};
  for (const CheckpointId& id : ids) {
    view.found.push_back({id, true, false});
    view.witnesses.push_back({id, this_run, "the storage says so", false});
  }
  return view;
}

/// Rank 2 sees that; rank 1 sees nothing, which says nothing.
Sights by_rank_2(RootSight sees, unsigned looks = looks_max) { return {{{1, "b", {}}, {2, "c", std::move(sees)}}, "a", looks}; }

const RootSight sees_twenty{this_run, 1, twenty};

/// Checkpoints 10 and 20 on `files`.
void save_two(FaultyFiles& files) {
  TestJob job{files, 2, 1};
  REQUIRE(said(job.start()) == "");
  for (const std::uint64_t step : {10u, 20u}) REQUIRE(said(job.save(step)) == "");
}

}  // namespace

TEST_CASE("a leader that sees what the other ranks see, or more, starts", "[checkpoint]") {
  CHECK(said(see_one_storage(seen({ten, twenty}), by_rank_2(sees_twenty))) == "");
  CHECK(said(see_one_storage(seen({ten, twenty}), {})) == "");
  CHECK(said(see_one_storage({.where = "/ck"}, by_rank_2({}))) == "");  // a first start
  SECTION("others looked before it: there may be more since") {
    CHECK(said(see_one_storage(seen({ten, twenty, {30, 1, 1}}), by_rank_2(sees_twenty))) == "");
    CHECK(said(see_one_storage(seen({{10, 2, 1}}, 2), by_rank_2(sees_twenty))) ==
          "");  // a later fence went back, and retention took the older ones
    CHECK(said(see_one_storage(seen({}, 1), by_rank_2({}))) == "");
  }
  SECTION("where a RUN.json cannot be read the rest is compared") {
    CHECK(said(see_one_storage(seen({ten, twenty}), by_rank_2({"", 1, twenty}))) == "");
    CHECK_FALSE(see_one_storage(seen({ten}), by_rank_2({"", 1, twenty})).ok());
  }
  SECTION("what is damaged, cannot be listed or is gone from ckpt/ is seen") {
    RootView view = seen({ten});
    view.found.push_back({twenty, false, false, "it cannot be listed"});
    CHECK(said(see_one_storage(view, by_rank_2(sees_twenty))) == "");
    view.found.pop_back();
    view.witnesses.push_back({twenty, this_run, "gens/ says so", false});
    CHECK(said(see_one_storage(view, by_rank_2(sees_twenty))) == "");
    view.witnesses.back().is_outside = true;  // an agent's memory is no sight of the leader's
    CHECK_FALSE(see_one_storage(view, by_rank_2(sees_twenty)).ok());
  }
}

TEST_CASE("a leader that sees less than another rank, or another root, does not start, and both sides are named", "[checkpoint]") {
  const auto refusal = [](const RootView& leaders, const RootSight& sees) {
    const auto result = see_one_storage(leaders, by_rank_2(sees));
    REQUIRE_FALSE(result.ok());
    CHECK(result.failure().code == Code::not_found);
    CHECK(result.failure().remedy == Remedy::fix_config);
    CHECK_THAT(result.failure().what, Contains("rank 2 (node c) sees ") && Contains(" under /ck, and rank 0 (node a) sees ") &&
                                          Contains("mount the same storage on all nodes"));
    return result.failure().what;
  };
  CHECK_THAT(refusal({.where = "/ck"}, sees_twenty),
             Contains("sees checkpoint s000000000020.g00000001.a01 of run " + this_run) && Contains("sees no run there"));
  CHECK_THAT(refusal({.where = "/ck"}, {"", 1, twenty}), Contains("sees no checkpoint there"));
  CHECK_THAT(refusal({.where = "/ck"}, {"", 3, {}}), Contains("sees fence 3") && Contains("sees none there"));
  CHECK_THAT(refusal({.where = "/ck"}, {this_run, 1, {}}), Contains("sees the root of run " + this_run));
  CHECK_THAT(refusal(seen({ten}), sees_twenty), Contains("nothing newer than s000000000010.g00000001.a01"));
  CHECK_THAT(refusal(seen({ten, twenty}), {this_run, 2, twenty}), Contains("sees fence 2") && Contains("none above 1"));
  CHECK_THAT(refusal(seen({twenty}), {this_run, 2, CheckpointId{10, 2, 1}}), Contains("nothing newer than s000000000020"));  // a later line
  CHECK_THAT(refusal(seen({ten, twenty}), {other_run, 1, ten}), Contains("of run " + other_run) && Contains("the root of run " + this_run));

  SECTION("it may be a moment: ranks look again before that ends the job") {
    for (unsigned looks = 1; looks <= looks_max; ++looks) {
      const auto result = see_one_storage(seen({ten}), by_rank_2(sees_twenty, looks));
      CHECK((result.failure().remedy == Remedy::retry) == (looks < looks_max));
      CHECK(may_be_seen_yet(result.failure()) == (looks < looks_max));
    }
  }
  SECTION("it says how many ranks see more") {
    Sights all = by_rank_2(sees_twenty);
    all.ranks[0].sees = sees_twenty;
    CHECK_THAT(said(see_one_storage(seen({ten}), all)), Contains("rank 1 (node b)") && Contains("2 of 3 ranks see what rank 0 does not"));
  }
}

TEST_CASE("a rank's sight is the root's identity, its highest published fence and the newest that is acknowledged", "[checkpoint]") {
  const std::vector<std::string> names{claim_name(4),
                                       fence_name(3),
                                       fence_name(1),
                                       acknowledgement_name({20, 1, 1}),
                                       acknowledgement_name({12, 3, 1}),
                                       acknowledgement_name({10, 3, 2}),
                                       "g00000009.json.tmp-1",
                                       "else"};
  CHECK(root_sight(this_run, names) == RootSight{this_run, 3, CheckpointId{12, 3, 1}});
  CHECK(root_sight("", {}) == RootSight{});
  FaultyFiles files;
  CHECK(TestJob{files, 2, 1}.ranks[1].sight().value() == RootSight{});
  save_two(files);
  const RootSight sight = TestJob{files, 2, 2}.ranks[1].sight().value();
  CHECK((sight.root.size() == 32 && sight.fence == 1 && sight.newest == twenty));
  files.broken = [](const Path& path) { return path.filename() == fences_directory ? EIO : 0; };
  CHECK(TestJob{files, 2, 2}.ranks[1].sight().failure().code == Code::io);  // as a start waits for it
  files.broken = [](const Path& path) { return path.filename() == fences_directory ? EACCES : 0; };
  CHECK(TestJob{files, 2, 2}.ranks[1].sight().value().root == sight.root);  // what it may not list it does not see
}

TEST_CASE("a start whose leader has another storage than a rank claims nothing and writes nothing", "[checkpoint]") {
  FaultyFiles shared, blind;
  save_two(shared);
  TestJob seeing{shared, 2, 2}, next{blind, 2, 2};
  KnownElsewhere known{.sights = {{{1, "b", seeing.ranks[1].sight().value()}}, "a", looks_max}};
  SECTION("with no remedy but a person's: --begin_anew is none") {
    next.leader.begin_anew = LossName{20, 1}, next.ranks.clear(), next.add_ranks(2);
  }
  SECTION("as it is") {}
  for (const auto& failure :
       {next.ranks[0].start(known).failure(), next.ranks[0].start_with_state(20, known).failure(), next.ranks[0].newest(known).failure()}) {
    CHECK(failure.code == Code::not_found);
    CHECK(failure.rank == Rank{0});
    CHECK_THAT(failure.what, Contains("rank 1 (node b) sees checkpoint s000000000020.g00000001.a01"));
  }
  CHECK(blind.all_files().empty());
  CHECK_FALSE(blind.list("/ckpts").ok());
}

TEST_CASE("nothing is written beside a COMMIT, whoever gave out the name", "[checkpoint]") {
  FaultyFiles shared, blind;
  save_two(shared);
  TestJob leader{blind, 3, 1}, seeing{shared, 3, 1};
  REQUIRE(said(leader.start()) == "");  // as if no rank had been asked
  const SaveTicket ticket = leader.ranks[0].begin_save(20).value();
  REQUIRE(ticket.id == twenty);
  const auto before = shared.all_files();
  const PartVote vote = seeing.ranks[1].write_part(ticket, seeing.held[1].fragments);
  REQUIRE(vote.refusal);
  CHECK(vote.refusal->code == Code::already_exists);
  CHECK_THAT(message(*vote.refusal), Contains("rank 1") && Contains("is a checkpoint already") && Contains("mount the same storage"));
  CHECK(shared.all_files() == before);
}
