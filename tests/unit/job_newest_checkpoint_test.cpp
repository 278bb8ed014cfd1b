// JobSaves::newest without a job: members that keep their state unless others have saved a newer one.

#include <cerrno>

#include "checkpoint/commit/newest.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/unit/saving_member.hpp"

namespace elrun::test {

TEST_CASE("members with an older state find the newest checkpoint on the storage, whatever the store knows", "[job_saves]") {
  FaultyFiles files;
  Saving old{files, 1, {.directory = "/root", .final_wait = 60s}};
  const auto newer_than = [](std::uint64_t step) { return [step](const NewestCheckpoint& one) { return one.id.step > step; }; };
  CHECK(old.saves.newest(old.saver(), newer_than(0)).newest == std::nullopt);
  old.saves.save(6, {{"elrun.step", {}}});
  // The store of another coordinator has nothing, and neither has this member's agent.
  Saving spare{files, 2, {.directory = "/root", .final_wait = 60s}};
  const auto newest = spare.saves.newest(spare.saver(), newer_than(3)).newest;
  REQUIRE(newest);
  CHECK(newest->id.step == 6);
  CHECK(newest->saved_in.number == 1);

  files.broken = [](const Path&) { return EIO; };
  const Instant begun = spare.clock.now();
  SECTION("nobody says that there is a newer one: the storage is waited for, and then they keep their state, with a warning") {
    CHECK(spare.saves.newest(spare.saver(), newer_than(3)).newest == std::nullopt);
    CHECK(spare.said("the workers keep their state"));
    CHECK(spare.clock.now() - begun >= 50s);
  }
  SECTION("the storage comes back") {
    spare.while_waiting = [&] { files.broken = {}; };
    CHECK(spare.saves.newest(spare.saver(), newer_than(3)).newest->id.step == 6);
  }
  SECTION("the store says that there is a newer one: the job ends, as where it starts") {
    spare.session.set_store(old.store.of(Rank{0}));
    CHECK_THROWS_AS(spare.saves.newest(spare.saver(), newer_than(3)), StorageIsAway);
    CHECK(spare.saves.newest(spare.saver(), newer_than(6)).newest == std::nullopt);  // but not for one that is older than their state
  }
  SECTION("what is acknowledged and missing is told, and they keep their state") {
    files.broken = {};
    REQUIRE(files.remove_file("/root/ckpt/s000000000006.g00000001.a01/COMMIT").ok());
    CHECK(spare.saves.newest(spare.saver(), newer_than(3)).newest == std::nullopt);
    CHECK(spare.said("the workers keep their state"));
    CHECK(spare.clock.now() - begun < 1s);
  }
}

TEST_CASE("members of another coordinator's generation look at the storage, and go on soon where it does not answer", "[job_saves]") {
  FaultyFiles files;
  Saving old{files, 1, {.directory = "/root"}};
  old.saves.save(6, {{"elrun.step", {}}});
  const auto newer_than = [](std::uint64_t step) { return [step](const NewestCheckpoint& one) { return one.id.step > step; }; };
  const auto look = [&](Saving& member, std::uint64_t step) { return member.saves.newest_soon(member.saver(), newer_than(step), true); };
  const auto away = [](const Path&) { return EIO; };
  SECTION("the storage answers") {
    Saving member{files, 2, {.directory = "/root"}};
    const auto looked = look(member, 3);
    CHECK(looked.has_answered);
    REQUIRE(looked.newest);
    CHECK(looked.newest->id.step == 6);
    CHECK(member.lines.empty());
  }
  SECTION("it is away: they go on after 5 s, or after final_wait where that is shorter") {
    for (const auto& [final_wait, longest] : {std::pair<Duration, Duration>{24h, 5s}, {3s, 3s}, {0s, 0s}}) {
      files.broken = away;
      Saving member{files, 2, {.directory = "/root", .final_wait = final_wait}};
      const Instant begun = member.clock.now();
      const auto looked = look(member, 3);
      CHECK_FALSE(looked.has_answered);
      CHECK_FALSE(looked.newest);
      CHECK(member.clock.now() - begun == longest);
      CHECK(member.said("go on with their state as the newest one"));
    }
  }
  SECTION("the time that the first try took counts") {
    Saving member{files, 2, {.directory = "/root"}};
    files.broken = [&](const Path& path) { return member.clock.advance(1s), away(path); };
    const Instant begun = member.clock.now();
    CHECK_FALSE(look(member, 3).has_answered);
    CHECK(member.clock.now() - begun <= 5s + 3s);  // a try asks three times
  }
  SECTION("it comes back") {
    files.broken = away;
    Saving member{files, 2, {.directory = "/root"}};
    member.while_waiting = [&] { files.broken = {}; };
    CHECK(look(member, 3).newest->id.step == 6);
  }
  SECTION("it is away, and an acknowledged checkpoint is newer: it is waited for, as at a start") {
    files.broken = away;
    Saving member{files, 2, {.directory = "/root", .final_wait = 300s}};
    member.session.set_store(old.store.of(Rank{0}));
    const Instant begun = member.clock.now();
    CHECK_FALSE(look(member, 6).has_answered);  // but not for one that is older than their state
    CHECK(member.clock.now() - begun == 5s);
    CHECK_THROWS_AS(look(member, 3), StorageIsAway);
    CHECK(member.clock.now() - begun >= 5s + 300s);
  }
}

TEST_CASE("what is remembered of a checkpoint in another directory is another job's, and one line says so", "[job_saves]") {
  FaultyFiles files;
  Saving old{files, 1, {.directory = "/root"}};
  old.saves.save(6, {{"elrun.step", {}}});
  Saving other{files, 2, {.directory = "/moved"}};
  other.session.set_store(old.store.of(Rank{0}));
  CHECK(other.saves.newest(other.saver(), [](const NewestCheckpoint&) { return true; }).newest == std::nullopt);
  CHECK(other.said("step 6 under /root"));
  CHECK(other.said("this one's are under /moved"));
}

TEST_CASE("a checkpoint under a directory whose name is no UTF-8 is missed like any other one", "[job_saves]") {
  const CheckpointOptions options{.directory = "/ck_\xff\xfe"};
  FaultyFiles files, removed;
  Saving old{files, 1, options};
  old.saves.save(6, {{"elrun.step", {}}});
  REQUIRE(old.saves.saved_step() == 6);
  Saving next{removed, 2, options};
  SECTION("by the job's store") { next.session.set_store(old.store.of(Rank{0})); }
  SECTION("by the agent") {
    const auto store = old.store.of(Rank{0});
    next.session.agent_remembers.checkpoint = newest_told(*store, Deadline::after(old.clock.now(), 1s)).value();
    CHECK(next.saves.remembered_step(next.saver().plan.hash) == 6);
  }
  CHECK_THROWS_AS(next.saves.restore(), Error);
  CHECK_FALSE(next.said("is taken for another job's"));
}

}  // namespace elrun::test
