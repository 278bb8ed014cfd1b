/// \file Never from zero, never silently back: what a start does with what it found and with what is known to have been there.

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/resume.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/storage/storage.hpp"
#include "tests/support/checkpoint_job.hpp"

#include <cerrno>

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

/// Saves 10, 20 and 30 under fence 1.
void three_checkpoints(FaultyFiles& files) {
  TestJob job{files, 2, 1};
  REQUIRE(said(job.start()) == "");
  for (const std::uint64_t step : {10u, 20u, 30u}) REQUIRE(said(job.save(step)) == "");
}

std::vector<Found> all_found(FaultyFiles& files) { return find_checkpoints(RootIn{files}).value(); }

void remove_commit(FaultyFiles& files, std::uint64_t step) {
  for (const Found& f : all_found(files))
    if (f.id.step == step) REQUIRE(said(files.remove_file(Path{"/ckpts/ckpt"} / to_string(f.id) / commit_file)) == "");
}

/// A root as elrun 0.1.0 left it.
void forget_acknowledgements(FaultyFiles& files) {
  const std::vector<CheckpointId> ids = find_acknowledged(RootIn{files}).value();
  for (const CheckpointId& id : ids) REQUIRE(said(files.remove_file(Path{"/ckpts/gens"} / acknowledgement_name(id))) == "");
}

void remove_below(FaultyFiles& files, const std::string& directory) {
  for (const Path& path : files.all_files())
    if (path.string().starts_with(directory)) REQUIRE(said(files.remove_file(path)) == "");
}

/// What an agent of a job remembers of its newest checkpoint.
std::vector<Witness> remembered(TestJob& job) {
  return {witness(decode_acknowledgement(as_bytes(job.ranks[0].acknowledged()), "memory").value(), "the agent of node n", true)};
}

std::size_t committed(FaultyFiles& files) {
  std::size_t count = 0;
  for (const Found& f : all_found(files)) count += f.committed;
  return count;
}

}  // namespace

TEST_CASE("the newest COMMIT removed: the start stops and names both sides, until its step is given up", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  remove_commit(files, 30);
  TestJob next{files, 1, 2};
  const auto stopped = next.start();
  REQUIRE_FALSE(stopped.ok());
  CHECK(stopped.failure().code == Code::not_found);
  CHECK(stopped.failure().remedy == Remedy::fix_config);
  CHECK_THAT(message(stopped.failure()), Contains("step 30 was acknowledged and cannot be found") &&
                                             Contains("nothing newer than s000000000020") && Contains("--begin_anew 30") &&
                                             Contains("g00000001.s000000000030.a01.acknowledged") && Contains("goes on from step 20"));
  CHECK_THAT(said(TestJob{files, 1, 3}.begin_anew(20)), Contains("names another step than the newest that is known, 30"));
  TestJob anew{files, 1, 4};
  REQUIRE(anew.begin_anew(30)->choice == CheckpointId{20, 1, 1});
  SECTION("the next start needs no option, and one that is left in place does nothing") {
    CHECK(TestJob{files, 1, 5}.start()->choice == CheckpointId{20, 1, 1});
    CHECK(TestJob{files, 1, 6}.begin_anew(30)->choice == CheckpointId{20, 1, 1});
    TestJob later{files, 1, 7};
    REQUIRE(later.begin_anew(30).ok());
    REQUIRE(said(later.save(30)) == "");
    REQUIRE(said(later.save(40)) == "");
    CHECK(TestJob{files, 1, 8}.begin_anew(30)->choice->step == 40);
    remove_commit(files, 40);
    CHECK_THAT(said(TestJob{files, 1, 9}.begin_anew(30)),
               Contains("step 40 was acknowledged") && Contains("--begin_anew 30 was already used for an earlier loss of that step"));
  }
  SECTION("the same step lost twice is not given up twice by one option") {
    REQUIRE(said(anew.save(30)) == "");
    for (const Found& f : all_found(files))
      if (f.id.step == 30 && f.committed) REQUIRE(files.remove_file(Path{"/ckpts/ckpt"} / to_string(f.id) / commit_file).ok());
    CHECK_THAT(said(TestJob{files, 1, 5}.begin_anew(30)),
               Contains("--begin_anew 30 was already used for an earlier loss of that step. It does not cover this one") &&
                   Contains("with --begin_anew 30@2 "));
    CHECK_THAT(said(TestJob{files, 1, 6}.begin_anew({30, 1})), Contains("does not cover this one"));
    CHECK_THAT(said(TestJob{files, 1, 7}.begin_anew({30, 9})),
               Contains("names another checkpoint of that step than the one that is lost, 30@2"));
    TestJob again{files, 1, 8};
    REQUIRE(again.begin_anew({30, 2})->choice == CheckpointId{20, 1, 1});
    CHECK(TestJob{files, 1, 9}.begin_anew({30, 2})->choice == CheckpointId{20, 1, 1});  // left in place it does nothing
    REQUIRE(said(again.restart()) == "");
    REQUIRE(said(again.save(30)) == "");
    CHECK(TestJob{files, 1, 10}.begin_anew({30, 2})->choice->step == 30);
    for (const Found& f : all_found(files))
      if (f.id.step == 30 && f.committed) REQUIRE(files.remove_file(Path{"/ckpts/ckpt"} / to_string(f.id) / commit_file).ok());
    CHECK_THAT(said(TestJob{files, 1, 11}.begin_anew({30, 2})), Contains("does not cover this one"));  // nor at the third loss
  }
  SECTION("retention leaves alone what was given up") {
    for (const std::uint64_t step : {30u, 40u, 50u, 60u}) {
      REQUIRE(said(anew.save(step)) == "");
      REQUIRE(said(anew.ranks[0].retain(2)) == "");
    }
    CHECK(files.list("/ckpts/ckpt/s000000000030.g00000001.a01").ok());
    CHECK(committed(files) == 2);
  }
}

TEST_CASE("with all COMMITs removed the start stops, and deletes nothing when it is told to begin anew", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  const bool old = GENERATE(false, true);
  if (old) forget_acknowledgements(files);
  for (const std::uint64_t step : {10u, 20u, 30u}) remove_commit(files, step);
  const auto stopped = TestJob{files, 1, 2}.start();
  REQUIRE_FALSE(stopped.ok());
  const std::uint64_t known = old ? 20 : 30;  // the manifest of 30 names the one before it
  CHECK_THAT(message(stopped.failure()), Contains("step " + std::to_string(known) + " was acknowledged") &&
                                             Contains("holds no checkpoint") && Contains("begins at step 0"));
  TestJob anew{files, 1, 3};
  REQUIRE_FALSE(anew.begin_anew(known)->choice);
  for (const std::uint64_t step : {10u, 20u, 30u, 40u}) {
    REQUIRE(said(anew.save(step)) == "");
    REQUIRE(said(anew.ranks[0].retain(2)) == "");
  }
  for (const std::uint64_t step : {10u, 20u, 30u}) {
    const Path directory = Path{"/ckpts/ckpt"} / to_string(CheckpointId{step, 1, 1});
    CHECK(files.list(directory).value().size() == 5);  // two shards, two parts, the manifest
  }
}

TEST_CASE("checkpoints removed as a whole, or with them the fences, or with those all but RUN.json, stop the start", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  TestJob next{files, 1, 2};
  remove_below(files, "/ckpts/ckpt/");
  CHECK_THAT(said(next.start()), Contains("step 30 was acknowledged"));
  remove_below(files, "/ckpts/gens/");
  CHECK_THAT(said(next.start()), Contains("has a RUN.json") && Contains("gens is gone") && Contains("--begin_anew 0@1 "));
  CHECK_THAT(said(TestJob{files, 1, 3}.begin_anew(0)),
             Contains("may be left over from an earlier loss"));  // nothing is left that could tell
  CHECK(said(TestJob{files, 1, 3}.begin_anew({0, 1})) == "");
  CHECK(said(TestJob{files, 1, 4}.begin_anew({0, 1})) == "");
  CHECK(said(TestJob{files, 1, 5}.start()) == "");
}

TEST_CASE("a start stops when fences are missing, and uses the newest checkpoint when it is told so", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  TestJob second{files, 2, 2};
  REQUIRE(said(second.start()) == "");
  REQUIRE(said(second.save(40)) == "");  // under fence 2
  const bool all = GENERATE(true, false);
  if (all) remove_below(files, "/ckpts/gens/");
  else REQUIRE(files.remove_file("/ckpts/gens/g00000002.json").ok());
  const auto before = files.all_files();
  TestJob next{files, 1, 3};
  const auto stopped = next.start();
  REQUIRE_FALSE(stopped.ok());
  CHECK(stopped.failure().remedy == Remedy::fix_config);
  CHECK_THAT(message(stopped.failure()), Contains("holds s000000000040.g00000002.a01, but gens/g00000002.json") && Contains("is gone") &&
                                             Contains("not copied with the rest") && Contains("--begin_anew 0@2 ") &&
                                             Contains("goes on from step 40"));
  CHECK(files.all_files() == before);
  CHECK_FALSE(TestJob{files, 1, 4}.begin_anew({40, 2}).ok());
  const Start start = TestJob{files, 1, 5}.begin_anew({0, 2}).value();
  CHECK(start.choice == CheckpointId{40, 2, 1});
  CHECK_THAT(start.notes.back(),
             Contains("what cannot be found is given up, as --begin_anew 0@2 says") && Contains("goes on from step 40"));
  CHECK(TestJob{files, 1, 6}.start()->choice->step == 40);             // the next needs no option,
  CHECK(TestJob{files, 1, 7}.begin_anew({0, 2})->choice->step == 40);  // and one that is left in place does nothing,
  TestJob later{files, 1, 8};
  REQUIRE(said(later.start()) == "");
  REQUIRE(said(later.save(50)) == "");
  remove_below(files, "/ckpts/gens/");
  CHECK_FALSE(TestJob{files, 1, 9}.begin_anew({0, 2}).ok());               // nor at the next loss
  const auto saves = TestJob{files, 1, 10}.ranks[0].start_with_state(50);  // who has the state goes back to nothing
  REQUIRE(said(saves) == "");
  CHECK_THAT(saves->notes.at(0), Contains("is gone") && Contains("saves on"));
}

TEST_CASE("a job that starts and saves while another looks does not make that one miss fences", "[checkpoint]") {
  for (std::uint64_t at = 0;; ++at) {
    FaultyFiles files;
    three_checkpoints(files);
    TestJob looking{files, 1, 2}, other{files, 1, 3};
    bool has_acted = false;
    files.arm(std::nullopt);
    files.before = [&](std::uint64_t number) {
      if (number != at) return;
      has_acted = true;
      REQUIRE(said(other.start()) == "");
      REQUIRE(said(other.save(40)) == "");
    };
    const auto start = looking.start();
    files.before = nullptr;
    INFO("before operation " << at);
    REQUIRE(said(start) == "");
    if (!has_acted) break;
    REQUIRE(at < 2000);
  }
}

TEST_CASE("a root that was empty is begun with a line that says so", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(said(job.start()) == "");
  CHECK_THAT(job.lines.back(),
             Contains("beginning at step 0, for /ckpts was empty") && Contains("if this job had checkpoints, stop it now"));
  TestJob next{files, 1, 2};  // a job that began there, and saved nothing
  REQUIRE(said(next.start()) == "");
  CHECK_THAT(next.lines.back(), Contains("holds no checkpoint, beginning at step 0"));
}

TEST_CASE("an empty root where /etc/fstab has a file system that is not mounted stops the start before it has written anything",
          "[checkpoint]") {
  FaultyFiles files;
  files.unmounted = "/ckpts";
  TestJob job{files, 1, 1};
  CHECK_THAT(said(job.start()), Contains("checkpoint root /ckpts is empty, and /ckpts, which /etc/fstab has, is not mounted") &&
                                    Contains("--begin_anew 0@0 "));
  CHECK_THAT(said(job.ranks[0].start_with_state(30)), Contains("is not mounted: mount it"));
  CHECK_FALSE(files.list("/ckpts").ok());
  SECTION("mounted, it begins") { files.unmounted.clear(); }
  SECTION("told so, it begins, and is not asked again") { REQUIRE(said(TestJob{files, 1, 2}.begin_anew({0, 0})) == ""); }
  TestJob next{files, 1, 3};
  REQUIRE(said(next.start()) == "");
  CHECK(said(next.save(10)) == "");
  CHECK(TestJob{files, 1, 4}.start()->choice->step == 10);
}

TEST_CASE("what may not be read is told as that, and what may not be written as that", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  const auto forbid = [&](const Path& path) { files.broken = [path](const Path& at) { return at == path ? EACCES : 0; }; };
  const Path newest = "/ckpts/ckpt/s000000000030.g00000001.a01";
  const auto is_about_reading = [](const std::string& text) {
    return Contains("let this user read the checkpoint root").match(text) && !Contains("write there").match(text);
  };
  for (const Path& path :
       {Path{"/ckpts/RUN.json"}, Path{"/ckpts/gens"}, Path{"/ckpts/ckpt"}, newest, newest / commit_file, newest / manifest_file}) {
    forbid(path);
    INFO(path);
    const std::string why = said(TestJob{files, 1, 2}.start());
    INFO(why);
    CHECK(is_about_reading(why));
    files.broken = nullptr;
  }
  TestJob next{files, 1, 3};
  const Start start = next.start().value();
  REQUIRE(start.choice->step == 30);
  forbid(newest / "r00000-of-00002.safetensors");
  CHECK(is_about_reading(said(next.load(start))));
  files.broken = [](const Path& at) { return at.string().find("s000000000040") != std::string::npos ? EACCES : 0; };
  CHECK_THAT(said(next.save(40)), Contains("let this user write there") && !Contains("let this user read"));
}

TEST_CASE("fences that nobody needs are removed: the newest 32, and those that a checkpoint names, stay", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);  // under fence 1
  for (std::uint64_t seed = 2; seed < 60; ++seed) REQUIRE(said(TestJob{files, 1, seed}.start()) == "");
  const auto fences = [&] { return find_fences(RootIn{files}).value(); };
  TestJob last{files, 1, 60};
  REQUIRE(said(last.start()) == "");
  REQUIRE(fences().size() == 60);
  REQUIRE(said(last.save(40)) == "");
  REQUIRE(said(last.ranks[0].retain(2)) == "");
  CHECK(fences().size() == 33);
  CHECK(fences().front() == 1);  // of the checkpoint of step 30
  CHECK(fences()[1] == 29);
  CHECK(find_published_fences(RootIn{files}).value().size() == 33);
  CHECK(TestJob{files, 1, 61}.start()->choice->step == 40);
  REQUIRE(said(last.restart()) == "");
  REQUIRE(said(last.save(50)) == "");
  REQUIRE(said(last.ranks[0].retain(2)) == "");
  REQUIRE(said(last.ranks[0].retain(2)) == "");
  CHECK(fences().size() == 32);  // with the last checkpoint that names it, fence 1 is not needed
  // A damaged highest fence is still judged by those below.
  files.overwrite(Path{"/ckpts/gens"} / fence_name(fences().back()), ByteVector(10));
  CHECK(TestJob{files, 1, 62}.start()->choice->step == 50);
}

TEST_CASE("the name of a loss is a step, or a step and a fence", "[checkpoint]") {
  CHECK(parse_loss_name("40") == LossName{40, {}});
  CHECK(parse_loss_name("40@7") == LossName{40, 7});
  CHECK(parse_loss_name("0@0") == LossName{0, 0});
  CHECK(parse_loss_name("999999999999@99999999") == LossName{step_max, fence_max});
  for (const LossName name : {LossName{40, {}}, LossName{40, 7}, LossName{step_max, fence_max}})
    CHECK(parse_loss_name(to_string(name)) == name);
  for (const char* other :
       {"", "@", "40@", "@7", "4x", "40@7x", "-4", "40@7@7", " 40", "1000000000000", "40@100000000", "99999999999999999999999", "40 @7"})
    CHECK_FALSE(parse_loss_name(other));
}

TEST_CASE("the root is gone, and an agent or the store remembers: the start stops before it has written anything", "[checkpoint]") {
  FaultyFiles files, bare;
  TestJob job{files, 1, 1};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(40)) == "");
  const auto memory = remembered(job);
  TestJob next{bare, 1, 2};
  CHECK_THAT(said(next.start(memory)),
             Contains("step 40 was acknowledged") && Contains("the agent of node n") && Contains("holds no checkpoint"));
  CHECK(bare.all_files().empty());
  CHECK_FALSE(bare.list("/ckpts").ok());
  const auto saves =
      next.ranks[0].start_with_state(40, {.witnesses = memory});  // nor does a job that has its state write to a bare mount point
  CHECK_THAT(said(saves), Contains("removed or unmounted while the job runs"));
  CHECK_FALSE(bare.list("/ckpts").ok());
  SECTION("given up, it begins at step 0, and the same memory counts no more") {
    TestJob anew{bare, 1, 3};
    CHECK_THAT(said(anew.begin_anew(40, memory)),
               Contains("--begin_anew 40 may be left over from an earlier loss") && Contains("with --begin_anew 40@1 "));
    CHECK(bare.all_files().empty());
    REQUIRE_FALSE(anew.begin_anew({40, 1}, memory)->choice);
    CHECK(said(TestJob{bare, 1, 4}.start(memory)) == "");
    REQUIRE(said(anew.restart(memory)) == "");
    REQUIRE(said(anew.save(5)) == "");
    CHECK(TestJob{bare, 1, 5}.start(memory)->choice->step == 5);
    SECTION("lost again at the same step, it has another name: an option that was left in place wipes nothing") {
      REQUIRE(said(anew.restart(memory)) == "");
      REQUIRE(said(anew.save(40)) == "");
      const auto newer = remembered(anew);
      FaultyFiles bare_again;
      CHECK_THAT(said(TestJob{bare_again, 1, 6}.begin_anew({40, 1}, newer)), Contains("names another checkpoint of that step"));
      CHECK_FALSE(TestJob{bare_again, 1, 6}.begin_anew(40, newer).ok());
      CHECK(bare_again.all_files().empty());
    }
  }
  SECTION("another root in its place is no better") {
    TestJob other{bare, 1, 9};
    REQUIRE(said(other.start()) == "");
    REQUIRE(said(other.save(90)) == "");
    CHECK_THAT(said(next.start(memory)), Contains("is another one"));
  }
  SECTION("where it is, it is no news") { CHECK(TestJob{files, 1, 2}.start(memory)->choice->step == 40); }
  SECTION("an older memory than the root's is none either") {
    REQUIRE(said(job.save(50)) == "");
    REQUIRE(said(job.save(60)) == "");
    REQUIRE(said(job.ranks[0].retain(2)) == "");
    CHECK(TestJob{files, 1, 2}.start(memory)->choice->step == 60);
  }
}

TEST_CASE("a job that has its state saves on although a COMMIT was removed, and says so", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  remove_commit(files, 30);
  TestJob next{files, 1, 2};
  const auto start = next.ranks[0].start_with_state(30);
  REQUIRE(said(start) == "");
  CHECK_THAT(start->notes.at(0), Contains("step 30 was acknowledged") && Contains("saves on"));
  CHECK(TestJob{files, 1, 3}.start()->choice->step == 20);  // it was judged
}

TEST_CASE("a job that has an older state than the newest checkpoint keeps that one beside its own, which stay", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  TestJob older{files, 1, 2};
  const auto start = older.ranks[0].start_with_state(12);
  REQUIRE(said(start) == "");
  REQUIRE(start->notes.size() == 2);
  CHECK_THAT(start->notes.at(0), Contains("s000000000030.g00000001.a01 is newer than the state of step 12"));
  for (const std::uint64_t step : {14, 16, 18}) {
    REQUIRE(said(older.save(step)) == "");
    REQUIRE(said(older.ranks[0].retain(2)) == "");
    CHECK(files.list("/ckpts/ckpt/" + to_string(CheckpointId{step, 2, 1})).ok());
  }
  for (const std::uint64_t step : {20, 30}) CHECK(files.list("/ckpts/ckpt/" + to_string(CheckpointId{step, 1, 1})).ok());
  const auto next = TestJob{files, 1, 3}.start();
  CHECK(next->choice == CheckpointId{18, 2, 1});
  CHECK_THAT(next->notes.at(0), Contains("s000000000020.g00000001.a01 is newer but is not used"));
}

TEST_CASE("who only looks for the newest checkpoint gets the one of a start, and changes nothing", "[checkpoint]") {
  FaultyFiles files;
  const auto looked = [&](std::uint64_t generation) { return TestJob{files, 1, generation}.ranks[0].newest(); };
  CHECK(*looked(1) == std::nullopt);
  CHECK(files.all_files().empty());
  three_checkpoints(files);
  const std::size_t files_before = files.all_files().size();
  const auto newest = looked(2);
  REQUIRE(said(newest) == "");
  REQUIRE(newest->has_value());
  CHECK((*newest)->id == CheckpointId{30, 1, 1});
  CHECK((*newest)->saved_in.number == 2);
  SECTION("a damaged one is passed over") {
    files.overwrite("/ckpts/ckpt/s000000000030.g00000001.a01/MANIFEST.json", ByteVector(10));
    CHECK((*looked(2))->id == CheckpointId{20, 1, 1});
  }
  SECTION("one that was acknowledged and is missing is a failure, as of a start") {
    remove_commit(files, 30);
    CHECK(looked(2).failure().code == Code::not_found);
    return;  // a start would fail, too
  }
  SECTION("so is a storage that cannot be read") {
    files.broken = [](const Path&) { return EIO; };
    CHECK(looked(2).failure().code == Code::io);
    files.broken = {};
  }
  CHECK(files.all_files().size() == files_before);
  CHECK(TestJob{files, 1, 3}.start()->fence == 2);  // nobody claimed one
}

TEST_CASE("a job that has its state keeps the whole checkpoints before a damaged one", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  const Path newest = "/ckpts/ckpt/s000000000030.g00000001.a01";
  const bool is_damaged = GENERATE(true, false);  // or cannot be read
  if (is_damaged) files.overwrite(newest / "MANIFEST.json", ByteVector(10));
  else files.broken = [&](const Path& at) { return at == newest / "MANIFEST.json" ? EIO : 0; };
  TestJob next{files, 1, 2};
  REQUIRE(said(next.ranks[0].start_with_state(30)) == "");
  REQUIRE(said(next.save(40)) == "");
  REQUIRE(said(next.ranks[0].retain(2)) == "");
  files.overwrite("/ckpts/ckpt/s000000000040.g00000002.a01/MANIFEST.json", ByteVector(10));
  const auto names = files.list(newest).value();
  CHECK((std::find(names.begin(), names.end(), quarantine_file) != names.end()) == is_damaged);
  if (!is_damaged) REQUIRE(files.write_durably(newest / quarantine_file, {}).ok());  // by a person, who knows that it stays so
  CHECK(TestJob{files, 1, 4}.start()->choice == CheckpointId{20, 1, 1});
  CHECK_FALSE(files.list("/ckpts/ckpt/s000000000010.g00000001.a01").ok());
}

TEST_CASE("a checkpoint that is damaged is there: the one before is used, with a word, as before", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  files.overwrite("/ckpts/ckpt/s000000000030.g00000001.a01/COMMIT", ByteVector(10));
  const Start start = TestJob{files, 1, 2}.start().value();
  CHECK(start.choice->step == 20);
  CHECK_THAT(start.notes.at(0), Contains("s000000000030") && Contains("going back"));
  CHECK(TestJob{files, 1, 3}.start()->choice->step == 20);
}

TEST_CASE("all checkpoints damaged: the newest step given up begins the job anew, and no other", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  for (const std::uint64_t step : {10u, 20u, 30u})
    files.overwrite(Path{"/ckpts/ckpt"} / to_string(CheckpointId{step, 1, 1}) / "MANIFEST.json", ByteVector(10));
  CHECK_THAT(said(TestJob{files, 1, 2}.start()), Contains("none of the 3 checkpoints") && Contains("--begin_anew 30"));
  CHECK_FALSE(TestJob{files, 1, 3}.begin_anew(20).ok());
  CHECK_FALSE(TestJob{files, 1, 4}.begin_anew(30)->choice);
  CHECK_FALSE(TestJob{files, 1, 5}.start()->choice);
}

TEST_CASE("the option refuses where nothing is missed, so that one in a template wipes nothing", "[checkpoint]") {
  FaultyFiles files;
  const auto fresh = TestJob{files, 1, 1}.begin_anew(30);
  REQUIRE_FALSE(fresh.ok());
  CHECK(fresh.failure().code == Code::invalid_argument);
  CHECK_THAT(message(fresh.failure()), Contains("nobody knows of a checkpoint"));
  three_checkpoints(files);
  for (const std::uint64_t step : {0u, 10u, 30u, 40u}) {
    const auto refused = TestJob{files, 1, 2}.begin_anew(step);
    CHECK_THAT(said(refused), Contains("nothing is missed") && Contains("s000000000030"));
  }
  CHECK(TestJob{files, 1, 3}.start()->choice->step == 30);
}

TEST_CASE("a start that is refused leaves the root to the job that runs there, whatever step the option names", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  TestJob running{files, 1, 2};
  REQUIRE(said(running.start()) == "");
  std::vector<std::uint64_t> steps{0, 10, 20, 30, 40};
  SECTION("nothing is missed") {}
  SECTION("the newest is damaged, and the one before it is whole") {
    files.overwrite("/ckpts/ckpt/s000000000030.g00000001.a01/MANIFEST.json", ByteVector(10));
  }
  SECTION("all are damaged") {
    for (const std::uint64_t step : {10u, 20u, 30u})
      files.overwrite(Path{"/ckpts/ckpt"} / to_string(CheckpointId{step, 1, 1}) / "MANIFEST.json", ByteVector(10));
    std::erase(steps, 30);
  }
  SECTION("the newest is missed") {
    remove_commit(files, 30);
    std::erase(steps, 30);
  }
  const auto before = files.all_files();
  for (const std::uint64_t step : steps) CHECK_FALSE(TestJob{files, 1, 3}.begin_anew(step).ok());
  CHECK((files.all_files() == before));  // no claim, and no quarantine
  REQUIRE(said(running.save(50)) == "");
  SECTION("nor does a job with another root take it over because it has its state") {
    TestJob other{files, 1, 4, small_model(), 1, "run", "/other"};
    REQUIRE(said(other.start()) == "");
    REQUIRE(said(other.save(60)) == "");
    other.leader.begin_anew = LossName{50, {}};
    Checkpointer moved{files, other.clock, other.log, "/ckpts", other.leader};
    CHECK_THAT(said(moved.start_with_state(60, {.witnesses = remembered(other)})), Contains("is another one"));
    CHECK(said(running.save(70)) == "");
  }
}

TEST_CASE("what a save left without a COMMIT, and could not be read for a while, is missed by nobody", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  TestJob cut{files, 2, 2};
  REQUIRE(said(cut.start()) == "");
  const Path left = Path{"/ckpts/ckpt"} / to_string(cut.ranks[0].begin_save(40)->id);
  files.broken = [&](const Path& at) { return at == left ? EIO : 0; };
  TestJob next{files, 1, 3};
  REQUIRE(said(next.ranks[0].start_with_state(30)) == "");
  files.broken = nullptr;
  CHECK(TestJob{files, 1, 4}.start()->choice == CheckpointId{30, 1, 1});
  SECTION("an acknowledged one is") {
    remove_commit(files, 30);
    CHECK_THAT(said(TestJob{files, 1, 5}.start()), Contains("step 30 was acknowledged"));
  }
}

TEST_CASE("a mount without its server damages nothing: the start fails as unreachable, and the next one goes on from the newest",
          "[checkpoint]") {
  const int error = GENERATE(ENOTCONN, ESTALE, EHOSTDOWN, ENODEV, EREMOTEIO);
  for (unsigned from = 1;; ++from) {
    FaultyFiles files;
    three_checkpoints(files);
    unsigned operations = 0;
    files.broken = [&](const Path&) { return ++operations >= from ? error : 0; };
    const auto started = TestJob{files, 1, 2}.start();
    files.broken = nullptr;
    INFO("errno " << error << " from operation " << from);
    if (started.ok()) break;
    CHECK(started.failure().code == Code::unreachable);
    CHECK(started.failure().remedy == Remedy::retry);
    CHECK(TestJob{files, 1, 3}.start()->choice == CheckpointId{30, 1, 1});
  }
}

TEST_CASE("one ESTALE costs no start that one EIO would not cost", "[checkpoint]") {
  const int unreachable = GENERATE(ESTALE, EREMOTEIO);
  std::uint64_t saved = 0;
  for (std::uint64_t at = 0;; ++at) {
    const auto with = [&](int error) {
      FaultyFiles files;
      three_checkpoints(files);
      files.arm(FaultyFiles::Fault{.at = at, .error = error});
      TestJob next{files, 1, 2};
      const auto started = next.start();
      REQUIRE((!started.ok() || started->choice == CheckpointId{30, 1, 1}));
      return std::pair{started.ok(), files.fired()};
    };
    const auto once = with(EIO);
    INFO("operation " << at);
    CHECK((!once.first || with(unreachable).first));
    saved += once.first && once.second;
    if (!once.second) break;
  }
  CHECK(saved > 10);
}

TEST_CASE("a directory that cannot be read stops nobody who does not need it", "[checkpoint]") {
  FaultyFiles files;
  three_checkpoints(files);
  const auto breaks = [&](const Path& path) { files.broken = [path](const Path& at) { return at == path ? EIO : 0; }; };
  SECTION("the oldest") {
    breaks("/ckpts/ckpt/s000000000010.g00000001.a01");
    TestJob next{files, 1, 2};
    REQUIRE(next.start()->choice == CheckpointId{30, 1, 1});
    for (const std::uint64_t step : {40u, 50u, 60u}) {
      REQUIRE(said(next.save(step)) == "");
      REQUIRE(said(next.ranks[0].retain(2)) == "");
    }
    files.broken = nullptr;
    CHECK(committed(files) == 3);  // it stays until it can be looked into
  }
  SECTION("the newest: the start fails, and goes back to no older one") {
    breaks("/ckpts/ckpt/s000000000030.g00000001.a01");
    CHECK_THAT(said(TestJob{files, 1, 2}.start()), Contains("s000000000030.g00000001.a01 under /ckpts cannot be read"));
    files.broken = nullptr;
    CHECK(TestJob{files, 1, 3}.start()->choice == CheckpointId{30, 1, 1});
  }
}
