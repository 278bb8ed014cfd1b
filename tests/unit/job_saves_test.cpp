// JobSaves without a job: when a job saves, and what follows a save that failed.

#include "lib/job/save/job_saves.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "checkpoint/staging/slot_save.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/unit/played_ckptd.hpp"
#include "tests/unit/saving_member.hpp"

namespace elrun::test {
namespace {

/// The store of a coordinator that is away: a call takes as long as its caller waits.
class AwayStore final : public RequestStore {
 public:
  AwayStore(ManualClock& clock, const Generation& generation) : RequestStore{clock, generation}, time_{clock} {}

 private:
  Result<StoreReply> ask(StoreRequest, Deadline deadline) override {
    time_.advance(deadline.left(time_.now()));
    return Failure{Code::deadline_passed, Remedy::retry, "the store did not answer in time"};
  }
  [[nodiscard]] std::uint32_t rank() const override { return 0; }
  ManualClock& time_;
};

const std::vector<Aux> host_state{{"elrun.step", {}}};

int full(const Path&) { return ENOSPC; }

/// Any of its operations may take that long.
class LimitedFiles final : public ForwardingFiles {
 public:
  LimitedFiles(Files& behind, Duration limit) : ForwardingFiles{behind}, limit_{limit} {}
  StorageActivity activity() override { return {.begun = 0, .longest = {}, .limit = limit_}; }

 private:
  const Duration limit_;
};

}  // namespace

TEST_CASE("a save is due every so many steps, and when a member leaves; never at the beginning or twice for one step", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3}};
  const auto due = [&] {
    std::vector<std::uint64_t> out;
    for (std::uint64_t step = 0; step < 8; ++step)
      if (member.saves.is_due(step)) out.push_back(step);
    return out;
  };
  CHECK(due() == std::vector<std::uint64_t>{3, 6});
  member.saves.set_saved_step(3);
  CHECK(due() == std::vector<std::uint64_t>{6});
  member.departure.set_member_leaves(true);
  CHECK(due() == std::vector<std::uint64_t>{0, 1, 2, 4, 5, 6, 7});
}

TEST_CASE("without a directory nothing is due or saved, also when a member leaves", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {}};
  member.departure.set_member_leaves(true);
  CHECK_FALSE(member.saves.has_directory());
  CHECK_FALSE(member.saves.is_due(4));
  member.saves.save_at_the_end(7, host_state);
  CHECK(files.all_files().empty());
}

TEST_CASE("a save that fails is told, training goes on, and the step is not saved", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3}};
  files.broken = full;
  member.saves.save(3, host_state);
  CHECK(member.said("the checkpoint of step 3 could not be saved, training goes on; this job has saved none yet"));
  CHECK_FALSE(member.said("tried again"));  // a full disk stays full
  CHECK(member.saves.is_due(3));
  files.broken = {};
  member.saves.save(6, host_state);
  CHECK(member.saves.saved_step() == 6);
  CHECK_FALSE(member.saves.is_due(6));
}

TEST_CASE("a coordinator that is away costs the first save two seconds, and each later one little more than one", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 1}};
  member.saves.save(1, host_state);
  member.session.set_store(std::make_unique<AwayStore>(member.clock, member.place().membership.generation));
  const auto seconds_of_save = [&](std::uint64_t step) {
    const Instant begun = member.clock.now();
    member.saves.save(step, host_state);
    CHECK(member.saves.saved_step() == step);
    return std::chrono::duration<double>(member.clock.now() - begun).count();
  };
  CHECK(seconds_of_save(2) <= 2.2);
  CHECK(seconds_of_save(3) <= 1.2);
  CHECK(seconds_of_save(4) <= 1.2);
}

TEST_CASE("one EIO costs an attempt, not the save: it is tried again at once under another name, also at the job's end", "[job_saves]") {
  for (const bool at_the_end : {false, true})
    for (std::uint64_t at = 0;; ++at) {
      FaultyFiles files;
      Saving member{files, 1, {.directory = "/root", .every = 3, .final_wait = 0s}};
      member.saves.save(3, host_state);
      files.arm(FaultyFiles::Fault{.at = at, .error = EIO});
      if (at_the_end) member.saves.save_at_the_end(6, host_state);
      else member.saves.save(6, host_state);
      INFO("operation " << at << (at_the_end ? ", at the end" : ""));
      CHECK(member.saves.saved_step() == 6);
      if (!files.fired()) break;
    }
}

TEST_CASE("a save on a disk that fails for good is tried three times, and says what is known of the one before", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3}};
  member.saves.save(3, host_state);
  files.broken = [](const Path& path) { return path.string().find("safetensors") != std::string::npos ? EIO : 0; };
  member.saves.save(6, host_state);
  CHECK(std::ranges::count_if(member.lines, [](const std::string& l) { return l.find("tried again under another name") != l.npos; }) == 2);
  CHECK(member.said("the checkpoint of step 6 could not be saved, training goes on; the newest that was saved is of step 3"));
  CHECK(member.said("s000000000006.g00000001.a03"));
  CHECK(member.saves.is_due(6));
}

TEST_CASE("the agent hears of each save that failed, once for all its tries, also at the job's end", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3, .final_wait = 2s}};
  files.broken = [](const Path&) { return EIO; };
  member.saves.save(3, host_state);
  files.broken = {};
  member.saves.save(6, host_state);
  files.broken = full;
  CHECK_THROWS_AS(member.saves.save_at_the_end(7, host_state), Error);
  using Failed = TestSession::FailedSave;
  CHECK(member.session.failed_saves ==
        std::vector<Failed>{{3, 1, Code::io}, {7, 2, Code::no_space}, {7, 3, Code::no_space}, {7, 4, Code::no_space}});
}

TEST_CASE("a save that fails when nothing was saved for max_age ends the job; one that succeeds begins the time anew", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 1, .max_age = 60s}};
  std::uint64_t step = 0;
  const auto saves_after = [&](Duration time) {
    member.clock.advance(time);
    member.saves.save(++step, host_state);
  };
  files.broken = full;
  saves_after(60s);  // since the job began
  files.broken = {};
  saves_after(60s);  // late, but saved
  files.broken = full;
  saves_after(30s), saves_after(30s);
  SECTION("too long") { CHECK_THROWS_AS(saves_after(1ms), CheckpointTooOld); }
  SECTION("with cause, both times and the step") {
    CHECK_THROWS_WITH(saves_after(12min), Catch::Contains("no checkpoint was saved for 780.0 s, and checkpoint.max_age is 60.0 s") &&
                                              Catch::Contains("the save of step 5 failed") && Catch::Contains("No space left"));
  }
  SECTION("going on from a checkpoint begins the time, too") {
    files.broken = {};
    Saving next{files, 2, {.directory = "/root", .every = 1, .max_age = 60s}};
    next.clock.advance(1h);
    REQUIRE(next.saves.restore().has_value());
    files.broken = full;
    next.saves.save(9, host_state);
    next.clock.advance(61s);
    CHECK_THROWS_AS(next.saves.save(10, host_state), CheckpointTooOld);
  }
  SECTION("time in which the job waited for other nodes does not count") {
    member.clock.advance(12h), member.saves.waited(12h);
    CHECK_NOTHROW(saves_after(0s));
    CHECK_THROWS_AS(saves_after(1ms), CheckpointTooOld);
  }
  SECTION("without max_age training goes on for ever") {
    files.broken = {};
    Saving other{files, 2, {.directory = "/root", .every = 1}};
    files.broken = full;
    other.clock.advance(1000h);
    CHECK_NOTHROW(other.saves.save(9, host_state));
  }
}

TEST_CASE("what was saved is restored, and an empty root restores nothing", "[job_saves]") {
  FaultyFiles files;
  Saving first{files, 1, {.directory = "/root"}};
  CHECK_FALSE(first.saves.restore().has_value());
  first.state.parameters().span()[5] = 4.5f;
  first.saves.save_at_the_end(7, {{"elrun.step", {std::byte{7}}}});
  Saving second{files, 2, {.directory = "/root"}};
  const auto restored = second.saves.restore();
  REQUIRE(restored.has_value());
  CHECK(restored->front().bytes == std::vector{std::byte{7}});
  CHECK(second.state.parameters().span()[5] == 4.5f);
}

TEST_CASE("a restore says from where, why, and which steps are done again, also to the agent", "[job_saves]") {
  FaultyFiles files;
  Saving first{files, 1, {.directory = "/root", .every = 1}};
  (void)first.saves.restore();
  CHECK(first.saves.restored().from == Restored::From::nothing);
  CHECK(first.saves.restored().why == "there is no checkpoint");
  REQUIRE(first.session.went_on.size() == 1);
  CHECK(first.session.went_on[0].checkpoint.empty());
  for (const std::uint64_t step : {3, 6}) first.saves.save(step, host_state);
  const std::string root = "/root/ckpt/";
  SECTION("the newest") {
    Saving next{files, 2, {.directory = "/root"}};
    next.session.agent_remembers.decided = 7;
    REQUIRE(next.saves.restore().has_value());
    const Restored& got = next.saves.restored();
    CHECK(got.from == Restored::From::checkpoint);
    CHECK(got.step == 6);
    CHECK(got.checkpoint == root + "s000000000006.g00000001.a01");
    CHECK(got.why == "the newest checkpoint");
    CHECK(got.steps_again == 1);
    REQUIRE(next.session.went_on.size() == 1);
    CHECK(next.session.went_on[0] == Restoration{got.checkpoint, 6, 1, got.why, got.notes});
    next.saves.forget_restored();
    CHECK_FALSE(next.saves.restored());
  }
  SECTION("an older one, after which the job did not fail twice") {
    Saving next{files, 2, {.directory = "/root"}};
    const FailureAfter once{root + "s000000000006.g00000001.a01", 2, 7, "exit code 3"};
    FailureAfter twice = once;
    twice.generation = 3;
    next.session.agent_remembers.failures = {once, twice};
    REQUIRE(next.saves.restore().has_value());
    CHECK(next.saves.restored().step == 3);
    CHECK(next.saves.restored().why == "a newer one is passed over");
    CHECK_THAT(next.saves.restored().notes.at(0), Catch::Contains("is whole, but passed over: generations 2 and 3 went on from it"));
    CHECK(next.said("is whole, but passed over"));
  }
  SECTION("what failed after a checkpoint of another root, or after what is none, is nothing to this job") {
    Saving next{files, 2, {.directory = "/root"}};
    for (const char* odd : {"/other/ckpt/s000000000006.g00000001.a01", "/root/ckpt/odd", "", "s000000000006.g00000001.a01"})
      for (const std::uint64_t generation : {2, 3}) next.session.agent_remembers.failures.push_back({odd, generation, 7, "exit code 3"});
    REQUIRE(next.saves.restore().has_value());
    CHECK(next.saves.restored().step == 6);
  }
}

TEST_CASE("the final save is tried again until the storage heals; meanwhile this is no hang, and the agent may let the node go",
          "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .final_wait = 90s}};
  member.session.leaves_at = 7;
  files.broken = full;
  member.while_waiting = [&] {
    if (member.clock.now() >= Instant{} + 2s) files.broken = {};
  };
  member.saves.save_at_the_end(7, host_state);
  CHECK(member.said("all 7 steps are done, but try 1 of the final checkpoint failed"));
  CHECK(member.said("the final checkpoint is saved, at try 3"));
  CHECK(member.session.decided == 7);
  CHECK(member.session.saves_told > 1s);  // the wait is no step that is done again
  CHECK(member.session.saves_told <= member.clock.now() - Instant{});
  CHECK(member.session.ready_at.size() == 1);
  CHECK(member.saves.saved_step() == 7);
  const std::size_t lines = member.lines.size();
  member.saves.save_at_the_end(7, host_state);  // it is there
  CHECK(member.lines.size() == lines);
}

TEST_CASE("what a final save left that was cut off makes room for its next try, where there is room for one alone", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3, .keep = 2, .final_wait = 90s}};
  for (const std::uint64_t step : {3, 6}) member.saves.save(step, host_state);
  const std::uint64_t state = state_bytes(member.saver().model), needs = state + state / 50 + 16384 + 4 * 1024 * 1024;
  files.disk = Bytes{files.stored().value() + needs + 4096};
  bool is_away = false;
  files.broken = [&](const Path& path) {  // also when what is there already is to be removed
    is_away = is_away || path.filename() == manifest_file;
    return is_away ? ETIMEDOUT : 0;
  };
  member.while_waiting = [&] { files.broken = {}; };
  member.saves.save_at_the_end(7, host_state);
  CHECK(member.said("try 1 of the final checkpoint failed: deadline_passed"));
  CHECK(member.said("the final checkpoint is saved, at try 2"));
  CHECK(member.saves.saved_step() == 7);
  CHECK(files.list("/root/ckpt").value() == std::vector<std::string>{"s000000000006.g00000001.a01", "s000000000007.g00000001.a02"});
}

TEST_CASE("fewer checkpoints that are kept make room on a full disk", "[job_saves]") {
  FaultyFiles files;
  Saving first{files, 1, {.directory = "/root", .every = 3, .keep = 4}};
  for (const std::uint64_t step : {3, 6, 9, 12}) first.saves.save(step, host_state);
  const std::uint64_t state = state_bytes(first.saver().model), needs = state + state / 50 + 16384 + 4 * 1024 * 1024;
  Saving next{files, 2, {.directory = "/root", .every = 3, .keep = 2}};
  REQUIRE(next.saves.restore().has_value());
  files.disk = Bytes{files.stored().value() + needs - state / 2};
  next.saves.save(15, host_state);
  CHECK(next.saves.saved_step() == 15);
  CHECK(next.said("old checkpoints beyond those that are kept are removed (1)"));
  CHECK(files.list("/root/ckpt").value() == std::vector<std::string>{"s000000000012.g00000001.a01", "s000000000015.g00000002.a01"});
}

TEST_CASE("a final save that never succeeds ends the job once its time is over", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .final_wait = 5s}};
  files.broken = full;
  CHECK_THROWS_WITH(member.saves.save_at_the_end(7, host_state),
                    Catch::Contains("all 7 steps are done, but the final checkpoint could not be saved"));
  CHECK(member.clock.now() == Instant{} + 5s);
}

TEST_CASE("a start waits for a storage that cannot be read, as the final save does, and goes on when it can", "[job_saves]") {
  FaultyFiles files;
  Saving first{files, 1, {.directory = "/root", .every = 3}};
  (void)first.saves.restore();
  first.saves.save(3, host_state);
  Saving next{files, 2, {.directory = "/root", .final_wait = 90s}};
  files.broken = [](const Path&) { return EIO; };
  next.while_waiting = [&] {
    if (next.clock.now() >= Instant{} + 2s) files.broken = {};
  };
  REQUIRE(next.saves.restore().has_value());
  CHECK(next.saves.restored().step == 3);
  CHECK(next.said("the job waits for the storage of its checkpoints, try 1 failed: io: rank 0"));
  CHECK(next.said("/root"));
  CHECK(next.said("It is tried again in 1.0 s, and 90.0 s are left"));
  CHECK(next.said("the storage answers, at try 3"));
  CHECK(next.session.decided == 0);  // no step was decided meanwhile
}

TEST_CASE("a storage that fails between a start's checks and its load sets nobody back: the newest checkpoint is loaded later",
          "[job_saves]") {
  FaultyFiles files;
  Saving first{files, 1, {.directory = "/root", .every = 3}};
  (void)first.saves.restore();
  for (const std::uint64_t step : {3, 6}) first.saves.save(step, host_state);
  Saving next{files, 2, {.directory = "/root", .final_wait = 90s}};
  unsigned looks = 0;
  const auto is_asked = [&] { return next.said("is given up") || next.clock.now() >= Instant{} + 2s; };
  bool heals_at_once = false;
  SECTION("in the wait") {}
  SECTION("before the next try of the same start") { heals_at_once = true; }
  files.broken = [&](const Path& path) {
    if (looks <= 8 && path.extension() == ".safetensors") ++looks;  // two looks into one shard: opened, its length, header and table
    return looks > 8 && !(heals_at_once && is_asked()) ? EIO : 0;
  };
  next.while_waiting = [&] {
    if (is_asked()) files.broken = {};
  };
  REQUIRE(next.saves.restore().has_value());
  CHECK_FALSE(next.said("is given up"));
  CHECK(next.said("the job waits for the storage of its checkpoints"));
  CHECK(next.saves.restored().step == 6);
  CHECK(next.saves.restored().notes.empty());
}

TEST_CASE("a start waits where no checkpoint can be read, although the storage lists them", "[job_saves]") {
  FaultyFiles files;
  Saving first{files, 1, {.directory = "/root", .every = 3}};
  (void)first.saves.restore();
  for (const std::uint64_t step : {3, 6}) first.saves.save(step, host_state);
  Saving next{files, 2, {.directory = "/root", .final_wait = 90s}};
  files.broken = [](const Path& path) { return path.filename() == "MANIFEST.json" ? EIO : 0; };
  next.while_waiting = [&] {
    if (next.clock.now() >= Instant{} + 2s) files.broken = {};
  };
  REQUIRE(next.saves.restore().has_value());
  CHECK(next.saves.restored().step == 6);
  CHECK(next.said("checkpoint s000000000006.g00000001.a01 under /root cannot be read"));
  CHECK_FALSE(next.said("begin_anew"));
}

TEST_CASE("an unreadable newest checkpoint ends the job after final_wait, even if an older one is readable; only a person passes it over",
          "[job_saves]") {
  FaultyFiles files;
  Saving first{files, 1, {.directory = "/root", .every = 3}};
  (void)first.saves.restore();
  for (const std::uint64_t step : {3, 6}) first.saves.save(step, host_state);
  Saving next{files, 2, {.directory = "/root", .final_wait = 90s}};
  const Path newest = "/root/ckpt/s000000000006.g00000001.a01";
  files.broken = [&](const Path& path) { return path == newest / "MANIFEST.json" ? EIO : 0; };
  SECTION("nobody does") {
    CHECK_THROWS_WITH(next.saves.restore(), Catch::Contains("their storage does not answer") &&
                                                Catch::Contains("checkpoint s000000000006.g00000001.a01 under /root cannot be read") &&
                                                Catch::Contains("goes back to no older one") &&
                                                Catch::Contains("touch " + (newest / "QUARANTINE").string()) &&
                                                !Catch::Contains("begin_anew"));
    CHECK(next.clock.now() == Instant{} + 90s);
  }
  SECTION("somebody does") {
    next.while_waiting = [&] {
      if (next.clock.now() >= Instant{} + 2s) (void)files.write_durably(newest / "QUARANTINE", {});
    };
    REQUIRE(next.saves.restore().has_value());
    CHECK(next.saves.restored().step == 3);
    CHECK_THAT(next.saves.restored().notes.at(0), Catch::Contains("s000000000006.g00000001.a01 is passed over"));
  }
}

TEST_CASE("the worker tells its agent that it waits for the storage, during a stuck operation and between tries", "[job_saves]") {
  FaultyFiles files;
  Saving first{files, 1, {.directory = "/root", .every = 3}};
  (void)first.saves.restore();
  first.saves.save(3, host_state);
  Saving next{files, 2, {.directory = "/root", .final_wait = 90s}};
  const auto several = [](const std::vector<StorageWaiting>& waits) { return waits.size() >= 3; };
  bool is_stuck = true;
  const auto sticks = [&](std::uint64_t) {
    if (std::exchange(is_stuck, false)) CHECK(several(next.session.waits(several)));  // the operation returns after that
  };
  SECTION("a start") {
    files.before = sticks;
    REQUIRE(next.saves.restore().has_value());
    CHECK(next.session.waits().front().directory == "/root");
  }
  SECTION("a save") {
    REQUIRE(next.saves.restore().has_value());
    files.before = sticks;
    next.saves.save_at_the_end(6, host_state);
    CHECK(next.saves.saved_step() == 6);
  }
  SECTION("between two tries, with the cause") {
    files.broken = [](const Path&) { return EIO; };
    next.while_waiting = [&] {
      const auto says_why = [](const std::vector<StorageWaiting>& waits) {
        return std::ranges::any_of(waits,
                                   [](const StorageWaiting& w) { return w.why.find("try 1 failed: io: rank 0") != std::string::npos; });
      };
      CHECK(says_why(next.session.waits(says_why)));
      files.broken = {};
    };
    REQUIRE(next.saves.restore().has_value());
  }
  CHECK(next.session.decided == 0);
}

TEST_CASE("what a start says of its storage ends with an operation's time, final_wait and a minute, although peers have an hour",
          "[job_saves]") {
  std::size_t said = 0;
  bool has_ended = false;
  // A machine that is busy elsewhere may give its thread no processor in that half a second: then another start is looked at.
  for (int tries = 0; tries < 20 && said == 0; ++tries) {
    FaultyFiles memory;
    LimitedFiles files{memory, 1s};
    Saving member{files, 1, {.directory = "/root", .final_wait = 500ms - 61s}};  // less than none: half a second is left
    member.program_timeout.begin_slots();
    REQUIRE(member.world.timeout() == 1h);
    bool hangs = true;
    has_ended = false;
    files.before = [&](const char*, const Path&) -> Result<void> {
      if (!std::exchange(hangs, false)) return {};
      std::this_thread::sleep_for(600ms);
      for (int looks = 0; looks < 100 && !has_ended; ++looks) {
        said = member.session.waits().size();
        std::this_thread::sleep_for(100ms);
        has_ended = member.session.waits().size() == said;
      }
      return {};
    };
    (void)member.saves.restore();
    CHECK_FALSE(hangs);
  }
  CHECK(said > 0);
  CHECK(has_ended);
}

TEST_CASE("during a save peers are waited for by the longest operation of the storage longer, and not behind it", "[job_saves]") {
  FaultyFiles memory;
  LimitedFiles files{memory, 556s};
  Saving member{files, 1, {.directory = "/root", .every = 3}};
  member.program_timeout.ended_slot(member.clock.now());  // a short one
  REQUIRE(member.world.timeout() == exchange_timeout_min);
  const bool fails = GENERATE(false, true);
  Duration least = 1h, most{};
  files.before = [&](const char* verb, const Path&) -> Result<void> {
    least = std::min(least, member.world.timeout()), most = std::max(most, member.world.timeout());
    return fails && verb == std::string_view{"sync"} ? Result<void>{Failure{Code::deadline_passed, Remedy::retry, "it hangs"}}
                                                     : Result<void>{};
  };
  member.saves.save(3, host_state);
  CHECK(member.said("training goes on") == fails);
  CHECK(least == exchange_timeout_min + 556s);
  CHECK(most == least);
  CHECK(member.world.timeout() == exchange_timeout_min);
}

TEST_CASE("a start without an answer from its storage ends the job after final_wait; a wrong setting ends it at once", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .final_wait = 5s}};
  SECTION("it cannot be read") {
    files.broken = [](const Path&) { return EIO; };
    CHECK_THROWS_AS(member.saves.restore(), StorageIsAway);
    CHECK(member.clock.now() == Instant{} + 5s);
  }
  SECTION("the last failure is told") {
    files.broken = [](const Path&) { return EIO; };
    CHECK_THROWS_WITH(member.saves.restore(),
                      Catch::Contains("their storage does not answer (4 tries in 5.0 s)") && Catch::Contains("/root"));
  }
  SECTION("it is full") {
    files.broken = full;
    CHECK_THROWS_AS(member.saves.restore(), Error);
    CHECK(member.clock.now() == Instant{});
  }
}

TEST_CASE("a newer job on the same root ends the older one at its next save, and is not harmed", "[job_saves]") {
  FaultyFiles files;
  Saving older{files, 1, {.directory = "/root", .every = 1}}, newer{files, 2, {.directory = "/root", .every = 1}};
  CHECK_FALSE(older.saves.restore().has_value());
  CHECK_FALSE(newer.saves.restore().has_value());
  try {
    older.saves.save(1, host_state);
    FAIL("the older job went on");
  } catch (const Error& e) {
    CHECK(e.failure().code == Code::refused);
    CHECK(e.failure().remedy == Remedy::fix_config);
  }
  newer.saves.save(1, host_state);
  CHECK(newer.saves.saved_step() == 1);
}

TEST_CASE("a new member that leads goes on counting the time without a checkpoint from what the others know", "[job_saves]") {
  FaultyFiles files;
  Saving old{files, 1, {.directory = "/root", .interval = 10s}}, fresh{files, 1, {.directory = "/root", .interval = 10s}};
  old.clock.advance(4s);
  old.saves.save(1, host_state);
  CHECK(old.saves.unsaved_for() == 0s);
  old.clock.advance(9s);
  CHECK(old.saves.unsaved_for() == 9s);
  SECTION("by what it hears") { fresh.saves.hear_unsaved_for(old.saves.unsaved_for()); }
  SECTION("in the process of a run of the program before") {
    fresh.clock.advance(13s);
    fresh.saves.continue_from(old.saves);
    CHECK(fresh.saves.saved_step() == 1);
  }
  CHECK(fresh.saves.unsaved_for() == 9s);
  CHECK_FALSE(fresh.saves.asks_for_save(2));
  fresh.clock.advance(1s);
  CHECK(fresh.saves.asks_for_save(3));
}

TEST_CASE("a directory is one of the working directory when it was named, also for ckptd, and whatever the program does later",
          "[job_saves]") {
  struct Back {
    ~Back() { std::filesystem::current_path(was); }
    Path was = std::filesystem::current_path();
  } const back;
  const TemporaryDirectory first, second;
  std::filesystem::current_path(first.path());
  const Path root = std::filesystem::current_path() / "ckpts";
  Writer writer;
  FaultyFiles files;
  const std::string given = GENERATE(as<std::string>{}, "ckpts", "ckpts/");
  Saving member{files, 1, {.directory = given, .every = 3, .async = true}, writer.path};
  std::filesystem::current_path(second.path());
  member.saves.save(3, host_state);
  member.saves.finish_copy();
  writer.accept();
  while (writer.hear() != SlotWord::sealed) {
  }
  CHECK(writer.slot->record(SlotState::sealed).value().directory == root.string());
  writer.say(SaveOutcome{1, 3, {}, Failure{Code::no_space, Remedy::retry, "full"}});
  member.saves.save_at_the_end(4, host_state);
  CHECK(files.list(root / "ckpt")->size() == 1);
}

TEST_CASE("a bound on bytes per second with which no save can be over in time is said, and no other", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  const Saving slow{files, 1, {.directory = "/root", .every = 3, .async = true, .rate = Bytes{1}}, writer.path};
  CHECK(slow.said("no asynchronous save can be over in time"));
  const Saving fast{files, 1, {.directory = "/root", .every = 3, .async = true, .rate = Bytes{~std::uint64_t{0} / 600 + 1}}, writer.path};
  CHECK(fast.lines.empty());
}

TEST_CASE("a world that ends in a save leaves it as a revoked call", "[job_saves]") {
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 1}};
  files.before = [&](std::uint64_t) { member.world.end({Code::peer_lost, Remedy::rejoin, "rank 1 went away"}); };
  CHECK_THROWS_WITH(member.saves.save(1, host_state), Catch::Contains("rank 1 went away"));  // no agent: an Error instead of Revoked
  CHECK(member.saves.saved_step() != 1);
}

}  // namespace elrun::test
