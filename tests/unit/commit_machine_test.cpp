/// \file The order of a save as a value: events in, one action out. The simulator (checkpoint_sim) drives the same machine on a storage.

#include <fmt/format.h>

#include "checkpoint/commit/commit_machine.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::commit;
using Catch::Matchers::Contains;

namespace {

constexpr CheckpointId saved{10, 3, 1};
const SaveTicket ticket{saved, "0123"};
const FencesSeen mine_is_newest{{1, 3}, {}}, overtaken{{3, 4}, Author{.run_id = "other"}};

Instant at(Duration since) { return Instant{} + since; }
PartVote yes(std::uint32_t rank, CheckpointId of = saved) { return {of, rank, 100, 7, {}}; }
VoteArrived vote(std::uint32_t rank) { return {{saved, rank}, yes(rank)}; }

/// A machine and the newest action that came out of it.
struct Conducted {
  Instant now{};
  CommitMachine save;
  std::optional<CommitAction> action;

  explicit Conducted(CommitMachine machine) : save{std::move(machine)}, action{save.start(now)} {}
  Conducted& then(const CommitEvent& event) { return action = save.on(event, now), *this; }
  Conducted& answer(CommitAnswer with) { return then(Answered{action.value().number, std::move(with)}); }
  template <class T>
  [[nodiscard]] bool asks() const {
    return action && std::holds_alternative<T>(action->what);
  }
};

CommitTerms terms(std::uint32_t world = 3, const CommitLimits& limits = {}) {
  return {.fence = 3, .author = {.run_id = "mine"}, .world = world, .root = "/ckpts", .limits = limits};
}
Conducted collecting(std::uint32_t world = 3, const CommitLimits& limits = {}) {
  return Conducted{CommitMachine::collect(terms(world, limits), ticket)};
}
/// All votes are in.
Conducted merging(const CommitLimits& limits = {}) {
  Conducted c = collecting(3, limits);
  for (const std::uint32_t rank : {2u, 0u, 1u}) c.then(vote(rank));
  return c;
}
Conducted publishing(const CommitLimits& limits = {}) {
  Conducted c = merging(limits);
  return c.answer(ManifestWritten{}).answer(Done{}).answer(mine_is_newest), c;
}

}  // namespace

TEST_CASE("a save goes through its actions in one order, from the first look at the fences to the acknowledgement", "[checkpoint]") {
  Conducted c{CommitMachine::begin(terms(2), {.step = 10, .needs = 1_KiB})};
  CHECK(c.asks<LookAtFences>());
  CHECK(c.answer(mine_is_newest).asks<AskSpace>());
  CHECK(c.answer(SpaceLeft{1_KiB}).asks<ReadRun>());
  CHECK(c.answer(RunKnown{"0123"}).asks<ListAttempts>());
  CHECK(c.answer(AttemptsFound{{{10, 3, 1}, {10, 2, 7}, {20, 3, 9}}}).asks<MakeDirectory>());
  CHECK(c.action->ticket.id == CheckpointId{10, 3, 2});  // another fence's and another step's attempts have other names
  CHECK_FALSE(c.answer(Done{}).action);
  CHECK(c.save.phase() == CommitPhase::collecting);
  CHECK(c.save.ticket().root == "0123");
  for (const std::uint32_t rank : {1u, 0u}) c.then(VoteArrived{{{10, 3, 2}, rank}, yes(rank, {10, 3, 2})});
  CHECK(c.asks<WriteManifest>());
  CHECK(c.answer(ManifestWritten{.bytes = 7, .crc = 1, .sha256 = "s", .files = 2, .total_bytes = 9}).asks<AskOwner>());
  CHECK(c.answer(Done{}).asks<LookAtFences>());
  CHECK_FALSE(c.save.may_be_published());
  CHECK(c.answer(mine_is_newest).asks<PublishCommit>());
  CHECK(std::get<PublishCommit>(c.action->what).manifest.bytes == 7);
  CHECK(c.save.may_be_published());
  CHECK(c.answer(Done{}).asks<AskOwner>());
  CHECK(c.answer(Done{}).asks<LookAtFences>());
  CHECK(c.answer(mine_is_newest).asks<Acknowledge>());
  CHECK_FALSE(c.save.is_over());
  CHECK_FALSE(c.answer(Done{}).action);
  CHECK(c.save.phase() == CommitPhase::committed);
}

TEST_CASE("a vote counts once, for the save and the rank under which it was sent", "[checkpoint]") {
  VoteCount count{saved, 3};
  const auto wrong = [&](std::uint32_t rank, const PartVote& said, const char* what) {
    const auto counted = count.add({saved, rank}, said);
    REQUIRE_FALSE(counted.ok());
    CHECK(counted.failure().code == Code::protocol);
    CHECK(counted.failure().rank == Rank{rank});
    CHECK_THAT(counted.failure().what, Contains(fmt::format("rank {} {}", rank, what)));
  };
  CHECK(count.add({saved, 1}, yes(1)).value() == VoteCount::Counted::yes);
  SECTION("one of each rank is all, in any order") {
    CHECK(count.missing() == std::vector<std::uint32_t>{0, 2});
    CHECK(count.add({saved, 2}, yes(2)).ok());
    CHECK_FALSE(count.is_complete());
    CHECK(count.add({saved, 0}, yes(0)).ok());
    CHECK(count.is_complete());
    CHECK(count.votes()[2].rank == 2);
  }
  SECTION("the same one again is no second one") {
    for (int i = 0; i < 5; ++i) CHECK(count.add({saved, 1}, yes(1)).value() == VoteCount::Counted::again);
    CHECK(count.missing() == std::vector<std::uint32_t>{0, 2});
  }
  SECTION("votes on another step, fence or attempt say nothing about this one") {
    for (const CheckpointId other : {CheckpointId{11, 3, 1}, CheckpointId{10, 2, 1}, CheckpointId{10, 3, 2}})
      CHECK(count.add({other, 2}, yes(2, other)).value() == VoteCount::Counted::stale);
    CHECK(count.missing() == std::vector<std::uint32_t>{0, 2});
  }
  SECTION("a refusal gives its own failure, with its rank, also after a yes") {
    PartVote no = yes(1);
    no.refusal = Failure{Code::no_space, Remedy::fix_config, "disk full"};
    const auto counted = count.add({saved, 1}, no);
    CHECK(counted.failure().code == Code::no_space);
    CHECK(counted.failure().rank == Rank{1});
    CHECK(counted.failure().what == "disk full");
  }
  SECTION("a vote of another save under this one's name") {
    wrong(2, yes(2, {10, 3, 2}), "voted on s000000000010.g00000003.a02 as rank 2, in a world of 3");
  }
  SECTION("a vote of another rank under this one's name") {
    wrong(2, yes(1), "voted on s000000000010.g00000003.a01 as rank 1, in a world of 3");
  }
  SECTION("a rank that the world has not") { wrong(3, yes(3), "voted on s000000000010.g00000003.a01 as rank 3, in a world of 3"); }
  SECTION("a rank that says two things") {
    PartVote other = yes(1);
    other.part_crc = 8;
    wrong(1, other, "voted twice, and not the same");
  }
}

TEST_CASE("the name of a vote in a store says save and rank, and nothing else is one", "[checkpoint]") {
  const VoteKey key{{12000, 7, 1}, 3};
  CHECK(to_string(key) == "s000000012000.g00000007.a01/r00003");
  CHECK(parse_vote_key(to_string(key)) == key);
  for (const char* text :
       {"", "/r00003", "s000000012000.g00000007.a01", "s000000012000.g00000007.a01/r3", "s000000012000.g00000007.a01/r0000x",
        "s000000012000.g00000007.a01/r000003", "s000000012000.g00000007.a01/r+0003"})
    CHECK_FALSE(parse_vote_key(text));
}

TEST_CASE("nothing is published before all votes are in, whatever comes first", "[checkpoint]") {
  Conducted c = collecting();
  for (int i = 0; i < 3; ++i) CHECK_FALSE(c.then(vote(0)).action);
  CHECK_FALSE(c.then(VoteArrived{{{10, 2, 1}, 1}, yes(1, {10, 2, 1})}).action);
  CHECK_FALSE(c.then(vote(2)).action);
  CHECK(c.save.waits_for() == "the votes of rank 1 on s000000000010.g00000003.a01");
  CHECK(c.then(vote(1)).asks<WriteManifest>());
  CHECK_FALSE(c.save.on(vote(1), {}));  // late ones change nothing
}

TEST_CASE("missing votes end the save at their deadline, and the ranks have names", "[checkpoint]") {
  Conducted c = collecting(12, {.votes = 30s});
  CHECK(c.save.wake_at() == at(30s));
  for (const std::uint32_t rank : {0u, 1u, 3u, 9u, 11u}) c.then(vote(rank));
  c.now = at(29s);
  CHECK_FALSE(c.then(TimePassed{}).action);
  c.now = at(30s);
  CHECK(c.then(TimePassed{}).asks<Abandon>());
  CHECK(c.save.failure().code == Code::deadline_passed);
  CHECK(c.save.failure().rank == Rank{2});
  CHECK(c.save.failure().what == "checkpoint s000000000010.g00000003.a01: ranks 2, 4 to 8, 10 did not vote within 30.0 s");
  CHECK_FALSE(c.answer(Done{}).action);
  CHECK(c.save.phase() == CommitPhase::failed);
}

TEST_CASE("where all that will come is there, a rank that did not vote ends the save", "[checkpoint]") {
  Conducted c = collecting();
  c.then(vote(0));
  CHECK(c.then(NoMoreVotes{}).asks<Abandon>());
  CHECK(c.save.failure().code == Code::protocol);
  CHECK(c.save.failure().what == "checkpoint s000000000010.g00000003.a01: ranks 1 and 2 did not vote");
}

TEST_CASE("a failure before COMMIT removes what the save left, and one after it removes nothing", "[checkpoint]") {
  const Failure why{Code::io, Remedy::retry, "disk on fire"};
  SECTION("before the ticket: there is nothing") {
    Conducted c{CommitMachine::begin(terms(), {.step = 10, .needs = {}})};
    CHECK_FALSE(c.answer(overtaken).action);
    CHECK(c.save.phase() == CommitPhase::failed);
    CHECK(c.save.failure().code == Code::refused);
  }
  SECTION("a refusal") {
    PartVote no = yes(1);
    no.refusal = why;
    CHECK(collecting().then(VoteArrived{{saved, 1}, no}).asks<Abandon>());
  }
  SECTION("the manifest") { CHECK(merging().answer(why).asks<Abandon>()); }
  SECTION("the generation is over") { CHECK(merging().answer(ManifestWritten{}).answer(why).asks<Abandon>()); }
  SECTION("a newer fence") { CHECK(merging().answer(ManifestWritten{}).answer(Done{}).answer(overtaken).asks<Abandon>()); }
  SECTION("COMMIT itself: it may be there") {
    Conducted c = publishing();
    CHECK_FALSE(c.answer(why).action);
    CHECK(c.save.phase() == CommitPhase::failed);
    CHECK(c.save.failure().what == "disk on fire");
  }
  SECTION("a newer fence after COMMIT: promised to nobody") {
    Conducted c = publishing();
    CHECK_FALSE(c.answer(Done{}).answer(Done{}).answer(overtaken).action);
    CHECK(c.save.phase() == CommitPhase::failed);
  }
  SECTION("somebody gives it up, in any phase before COMMIT") {
    CHECK(collecting().then(GiveUp{why}).asks<Abandon>());
    CHECK(merging().then(GiveUp{why}).asks<Abandon>());
  }
  SECTION("and not after it: the fence decides") {
    Conducted c = publishing();
    const CommitAction publish = *c.action;
    CHECK_FALSE(c.then(GiveUp{why}).action);
    CHECK(c.then(Answered{publish.number, Done{}}).asks<AskOwner>());
  }
}

TEST_CASE("an answer counts for its own action, and once", "[checkpoint]") {
  Conducted c = merging();
  c.answer(ManifestWritten{});
  const std::uint64_t first_question = c.action->number;
  c.answer(Done{}).answer(mine_is_newest).answer(Done{});
  REQUIRE(c.save.phase() == CommitPhase::asking_owner_again);
  CHECK_FALSE(c.save.on(Answered{first_question, Done{}}, {}));  // who led before COMMIT may not lead after it
  CHECK(c.save.phase() == CommitPhase::asking_owner_again);
}

TEST_CASE("a job that cannot tell who leads forbids nothing: the fence decides", "[checkpoint]") {
  Conducted c = merging({.owner = 5s});
  c.answer(ManifestWritten{});
  REQUIRE(c.asks<AskOwner>());
  const std::uint64_t question = c.action->number;
  c.now = at(5s);
  CHECK(c.then(TimePassed{}).asks<LookAtFences>());
  CHECK_FALSE(c.save.on(Answered{question, Failure{Code::generation_over, Remedy::rejoin, "late"}}, c.now));
  CHECK(c.answer(overtaken).asks<Abandon>());
}

TEST_CASE("a storage that hangs ends the save, which names what it waited for and removes nothing", "[checkpoint]") {
  Conducted c = publishing({.storage = 60s});
  const std::uint64_t publish = c.action->number;
  c.now = at(60s);
  CHECK_FALSE(c.then(TimePassed{}).action);
  CHECK(c.save.phase() == CommitPhase::failed);
  CHECK_THAT(c.save.failure().what, Contains("/ckpts") && Contains("60.0 s") && Contains("COMMIT"));
  CHECK_FALSE(c.then(Answered{publish, Done{}}).action);  // and when it answers at last, the save stays failed

  Conducted before = merging({.storage = 60s});
  before.now = at(60s);
  CHECK_FALSE(before.then(TimePassed{}).action);  // where a removal would be allowed: it would hang, too
  CHECK(before.save.phase() == CommitPhase::failed);
}

TEST_CASE("a job that ended, or does not say who leads, after COMMIT", "[checkpoint]") {
  Conducted c = publishing({.owner = 5s});
  REQUIRE(c.answer(Done{}).asks<AskOwner>());
  SECTION("ended: the checkpoint is acknowledged to nobody, and stays") {
    CHECK_FALSE(c.answer(Failure{Code::generation_over, Remedy::rejoin, "over"}).action);
    CHECK(c.save.phase() == CommitPhase::failed);
    CHECK(c.save.failure().what == "over");
  }
  SECTION("no answer: the fence decides") {
    c.now = at(5s);
    CHECK(c.then(TimePassed{}).asks<LookAtFences>());
    CHECK(c.answer(mine_is_newest).asks<Acknowledge>());
  }
}

TEST_CASE("an attempt has a name that no other had, also one that was removed since", "[checkpoint]") {
  const auto named = [](std::vector<CheckpointId> taken) {
    Conducted c{CommitMachine::begin(terms(), {.step = 10, .needs = {}})};
    c.answer(mine_is_newest).answer(SpaceLeft{}).answer(RunKnown{"0123"}).answer(AttemptsFound{std::move(taken)});
    return c;
  };
  CHECK(named({}).action->ticket.id.attempt == 1);
  CHECK(named({{10, 3, 2}, {10, 3, 4}, {10, 3, 3}}).action->ticket.id.attempt == 5);
  CHECK(named({{10, 2, 4}, {9, 3, 4}}).action->ticket.id.attempt == 1);
  const Conducted used_up = named({{10, 3, attempt_max}});
  CHECK_FALSE(used_up.action);
  CHECK(used_up.save.failure().code == Code::exhausted);
}
