/// \file What holds for every model, world, fault, crash, flipped bit and interleaving.

#include <cerrno>
#include <set>

#include "checkpoint/format/records.hpp"
#include "checkpoint/storage/storage.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

/// A start of a fresh job with another world, in which nothing fails: what must hold after anything that went before.
/// Returns the step that it goes on from.
std::optional<std::uint64_t> recover(FaultyFiles& files, std::uint64_t seed, std::uint32_t world) {
  files.arm(std::nullopt);
  TestJob job{files, world, seed};
  const auto start = job.start();
  REQUIRE(said(start) == "");
  if (!start->choice) return std::nullopt;
  REQUIRE(said(job.load(*start)) == "");  // checks every byte
  return start->choice->step;
}

/// Whatever bears a COMMIT is whole: nothing is removed before that name is, durably.
void require_committed_are_whole(FaultyFiles& files) {
  const auto text = files.read_all("/ckpts/RUN.json", 1_MiB);
  const std::vector<Found> all = find_checkpoints(RootIn{files}).value();
  for (const Found& found : all) {
    if (!found.committed) continue;
    const std::string root = decode_run(text.value(), "RUN.json")->root;
    REQUIRE(said(verify_checkpoint(RootIn{files}, checkpoint_directory(found.id), found.id, root)) == "");
  }
}

/// Saves 20 and 30 with retention; `acknowledged` is the newest step that was promised.
void save_twice(TestJob& job, std::uint64_t& acknowledged) {
  for (const std::uint64_t step : {20u, 30u}) {
    if (job.save(step).ok()) acknowledged = step;
    (void)job.ranks[0].retain(2);
  }
}

/// Step 10 is there and promised before the fault.
std::unique_ptr<TestJob> job_with_one_checkpoint(FaultyFiles& files) {
  auto job = std::make_unique<TestJob>(files, 2, 1);
  REQUIRE(said(job->start()) == "");
  REQUIRE(said(job->save(10)) == "");
  return job;
}

}  // namespace

TEST_CASE("what was saved by W ranks is loaded by W' ranks, bit for bit, reading little more than it needs", "[checkpoint]") {
  for_all_seeds(150, [](Rng& rng) {
    FaultyFiles files;
    const ModelTable model = random_model(rng);
    const auto writers = static_cast<std::uint32_t>(1 + rng.below(6)), readers = static_cast<std::uint32_t>(1 + rng.below(6));
    TestJob before{files, writers, rng.next(), model, rng.next()}, after{files, readers, rng.next(), model, 0};
    REQUIRE(said(before.start()) == "");
    REQUIRE(said(before.save(42)) == "");
    const Start start = after.start().value();
    REQUIRE(start.choice);
    for (std::uint32_t rank = 0; rank < readers; ++rank) {
      std::uint64_t wanted = 0, extents = 0;
      for (const Fragment& f : after.held[rank].fragments) wanted += f.bytes.size(), extents += 1;
      const std::uint64_t before_bytes = files.bytes_read;
      REQUIRE(said(after.ranks[rank].load(start, after.held[rank].fragments)) == "");
      CHECK(holds(model, after.held[rank], 42));
      // Whole blocks at both ends of each extent, plus headers, tables and the manifest.
      const std::uint64_t files_bytes =
          files.content(Path{"/ckpts/ckpt"} / to_string(*start.choice) / manifest_file).size() + writers * 16384ull;
      CHECK(files.bytes_read - before_bytes <=
            wanted + 2 * block_bytes * (extents + writers * (model.kinds.size() * model.units.size())) + files_bytes);
    }
  });
}

TEST_CASE("a block is read once by a rank, and blocks that it does not need not at all", "[checkpoint]") {
  FaultyFiles files;
  const ModelTable model{.units = {{"big", 4 << 20, {}}}, .kinds = {{"param", DType::f32}}};  // 256 blocks
  TestJob before{files, 1, 1, model, 0};
  REQUIRE(before.start().ok());
  REQUIRE(said(before.save(7)) == "");
  TestJob after{files, 1, 2, model, 0};
  const Start start = after.start().value();
  ByteVector memory(4 * 100'000);
  const std::uint64_t before_bytes = files.bytes_read;
  REQUIRE(after.ranks[0].load(start, std::vector<Fragment>{{"param", 0, 1'000'000, 1'100'000, memory}}).ok());
  CHECK(files.bytes_read - before_bytes <= memory.size() + 2 * block_bytes + 16'384);  // header, table and manifest
}

TEST_CASE("an operation that fails, once or for good, loses nothing that was promised, even if the power goes after it", "[checkpoint]") {
  for (const int error : {ENOSPC, EIO, EACCES})
    for (const int way : {0, 1, 2, 3})
      for (std::uint64_t at = 0;; ++at) {
        const bool sticky = way % 2 == 1, power_lost = way >= 2;
        FaultyFiles files;
        auto job = job_with_one_checkpoint(files);
        std::uint64_t acknowledged = 10;
        INFO("operation " << at << " fails with errno " << error << (sticky ? ", for good" : ", once")
                          << (power_lost ? ", then the power goes" : ""));
        files.arm(FaultyFiles::Fault{.at = at, .error = error, .sticky = sticky, .half_done = at % 2 == 0});
        save_twice(*job, acknowledged);
        const bool reached = files.fired();
        files.arm(std::nullopt);
        if (reached && at % 3 == 0) {  // the storage has healed: the same job saves on
          REQUIRE(said(job->save(40)) == "");
          acknowledged = 40;
        }
        Rng rng{at};
        if (power_lost) files.crash(rng);  // a sync that failed and was tried again would show here
        REQUIRE(recover(files, 2, 3) >= acknowledged);
        if (!reached) break;
        REQUIRE(at < 2000);
      }
}

TEST_CASE("a process killed at any operation loses nothing that was promised", "[checkpoint]") {
  for (const bool half_done : {false, true})
    for (std::uint64_t at = 0;; ++at) {
      FaultyFiles files;
      auto job = job_with_one_checkpoint(files);
      std::uint64_t acknowledged = 10;
      INFO("killed " << (half_done ? "after" : "before") << " operation " << at);
      files.arm(FaultyFiles::Fault{.at = at, .half_done = half_done});
      bool killed = false;
      try {
        save_twice(*job, acknowledged);
      } catch (const Killed&) {
        killed = true;
      }
      REQUIRE(recover(files, 2, 3) >= acknowledged);
      TestJob next{files, 1, 3};  // and the dead job's leftovers go
      REQUIRE(next.start().ok());
      REQUIRE(said(next.save(50)) == "");
      REQUIRE(said(next.ranks[0].retain(2)) == "");
      CHECK(files.list("/ckpts/ckpt").value().size() == 2);
      if (!killed) break;
      REQUIRE(at < 2000);
    }
}

TEST_CASE("power lost at any operation, from the first start on, loses nothing that was promised", "[checkpoint]") {
  for_all_seeds(4, [](Rng& rng) {
    for (std::uint64_t at = 0;; ++at) {
      FaultyFiles files;
      std::uint64_t acknowledged = 0;
      INFO("power lost at operation " << at);
      files.arm(FaultyFiles::Fault{.at = at, .half_done = rng.chance(0.5)});
      bool killed = false;
      try {
        TestJob job{files, 2, 1};
        if (!job.start().ok()) FAIL("a start fails without a fault");
        if (job.save(10).ok()) acknowledged = 10;
        save_twice(job, acknowledged);
      } catch (const Killed&) {
        killed = true;
      }
      files.crash(rng);
      require_committed_are_whole(files);
      const auto step = recover(files, 2, 3);
      REQUIRE(step.value_or(0) >= acknowledged);
      files.crash(rng);  // what a start has chosen, it has made durable
      REQUIRE(recover(files, 3, 1).value_or(0) >= step.value_or(0));
      if (!killed) break;
      REQUIRE(at < 2000);
    }
  });
}

TEST_CASE("a start that fails or is killed at any operation leaves the next one the same checkpoint", "[checkpoint]") {
  for (const int error : {0, ENOSPC, EIO, EACCES})
    for (const bool sticky : {false, true})
      for (std::uint64_t at = 0;; ++at) {
        FaultyFiles files;
        auto job = job_with_one_checkpoint(files);
        REQUIRE(said(job->save(20)) == "");
        INFO("operation " << at << " of the start: errno " << error << (sticky ? ", for good" : ", once"));
        files.arm(FaultyFiles::Fault{.at = at, .error = error, .sticky = sticky, .half_done = at % 2 == 0});
        try {
          TestJob starting{files, 2, 2};
          const auto start = starting.start();
          if (start.ok()) CHECK(start->choice->step == 20);
        } catch (const Killed&) {
        }
        const bool reached = files.fired();
        REQUIRE(recover(files, 3, 3) == 20u);
        if (!reached) break;
        REQUIRE(at < 2000);
      }
}

TEST_CASE("one flipped bit or a cut in any byte is never accepted: the checkpoint before is used, and it is said why", "[checkpoint]") {
  FaultyFiles clean;
  auto job = job_with_one_checkpoint(clean);
  REQUIRE(said(job->save(20)) == "");
  Rng rng{99};
  const Path victim = "/ckpts/ckpt/s000000000020.g00000001.a01";
  for (const Path& path : clean.all_files()) {
    if (path.parent_path() != victim || path.string().ends_with(".part.json")) continue;  // parts are read by the commit alone
    const ByteVector good = clean.content(path);
    // Every byte of COMMIT; of the others every class of byte, at random places.
    const bool small = good.size() < 1024;
    for (std::size_t trial = 0; trial < (small ? good.size() : 250); ++trial) {
      const bool cut = trial % 16 == 15;
      const std::size_t byte = small            ? trial
                               : trial % 5 == 0 ? rng.below(8)
                               : trial % 5 == 1 ? good.size() - 1 - rng.below(12)
                               : trial % 5 == 2 ? rng.below(std::min<std::size_t>(4096, good.size()))
                                                : rng.below(good.size());
      ByteVector bad = good;
      if (cut) bad.resize(byte);
      else bad[byte] ^= std::byte(1 << rng.below(8));
      FaultyFiles files;
      auto other = job_with_one_checkpoint(files);
      REQUIRE(said(other->save(20)) == "");
      files.overwrite(path, bad);
      INFO(path << (cut ? " cut at byte " : " flipped in byte ") << byte);
      TestJob next{files, 1, 5};
      Start start = next.start().value();
      REQUIRE(start.choice);
      std::string why;
      if (start.choice->step == 20) {
        const auto loaded = next.load(start);
        REQUIRE_FALSE(loaded.ok());
        CHECK(loaded.failure().code == Code::corrupt);
        why = loaded.failure().what;
        CHECK_THAT(why, Contains("block"));
        REQUIRE(next.ranks[0].reject(start, loaded.failure()).ok());
        start = next.start().value();
      } else {
        why = start.notes.at(0);
      }
      CHECK_THAT(why, Contains(path.filename().string()) && Contains("s000000000020"));
      REQUIRE(start.choice->step == 10);
      REQUIRE(said(next.load(start)) == "");
      CHECK(recover(files, 6, 2) == 10u);  // and everybody after agrees
    }
  }
}

TEST_CASE("a missing file is damage as well", "[checkpoint]") {
  for (const char* name : {"MANIFEST.json", "r00000-of-00002.safetensors", "r00001-of-00002.safetensors"}) {
    FaultyFiles files;
    auto job = job_with_one_checkpoint(files);
    REQUIRE(said(job->save(20)) == "");
    REQUIRE(files.remove_file(Path{"/ckpts/ckpt/s000000000020.g00000001.a01"} / name).ok());
    TestJob next{files, 1, 2};
    const Start start = next.start().value();
    CHECK(start.choice->step == 10);
    CHECK_THAT(start.notes.at(0), Contains(name));
    const auto left = files.list("/ckpts/ckpt/s000000000020.g00000001.a01").value();
    CHECK(std::find(left.begin(), left.end(), "QUARANTINE") != left.end());
  }
}

TEST_CASE("a damaged RUN.json, or none, is written again from a whole checkpoint, and the damaged one is kept", "[checkpoint]") {
  FaultyFiles files;
  auto job = job_with_one_checkpoint(files);
  const ByteVector good = files.content("/ckpts/RUN.json");
  const std::string root = decode_run(good, "RUN.json")->root;
  Rng rng{5};
  for (std::uint64_t trial = 0; trial < 100; ++trial) {
    ByteVector bad = good;
    bad[rng.below(bad.size())] ^= std::byte(1 << rng.below(8));
    if (trial % 10 == 9) REQUIRE(files.remove_file("/ckpts/RUN.json").ok());
    else files.overwrite("/ckpts/RUN.json", bad);
    CHECK(recover(files, 2 + trial, 1) == 10u);
    if (trial % 10 != 9) CHECK(files.content("/ckpts/RUN.json.damaged") == bad);
    const auto run = decode_run(files.content("/ckpts/RUN.json"), "RUN.json");
    REQUIRE(said(run) == "");
    CHECK(run->root == root);
    CHECK(run->plan == decode_run(good, "RUN.json")->plan);
    CHECK(run->model == decode_run(good, "RUN.json")->model);
  }
  TestJob other{files, 1, 200, small_model(), 1, "run", "/ckpts", {"def456", "global_batch: 128\nseed: 7"}};
  files.overwrite("/ckpts/RUN.json", ByteVector(10));
  CHECK_THAT(said(other.start()), Contains("mismatch") && Contains("global_batch"));  // as if it were whole
}

TEST_CASE("power lost at any operation while RUN.json is written again: the next start goes on", "[checkpoint]") {
  for_all_seeds(3, [](Rng& rng) {
    for (std::uint64_t at = 0;; ++at) {
      FaultyFiles files;
      auto job = job_with_one_checkpoint(files);
      files.overwrite("/ckpts/RUN.json", ByteVector(100));
      INFO("power lost at operation " << at);
      files.arm(FaultyFiles::Fault{.at = at, .half_done = rng.chance(0.5)});
      bool killed = false;
      try {
        TestJob next{files, 1, 2};
        if (!next.start().ok()) FAIL("a start fails without a fault");
      } catch (const Killed&) {
        killed = true;
      }
      files.crash(rng);
      REQUIRE(recover(files, 3, 2) == 10u);
      if (!killed) break;
      REQUIRE(at < 2000);
    }
  });
}

TEST_CASE("whatever crash came before: once a save was acknowledged, its checkpoint cannot go unnoticed", "[checkpoint]") {
  for_all_seeds(4, [](Rng& rng) {
    for (std::uint64_t at = 0;; ++at) {
      FaultyFiles files;
      auto job = job_with_one_checkpoint(files);
      std::uint64_t acknowledged = 10;
      INFO("power lost at operation " << at);
      files.arm(FaultyFiles::Fault{.at = at, .half_done = rng.chance(0.5)});
      bool killed = false;
      try {
        save_twice(*job, acknowledged);
      } catch (const Killed&) {
        killed = true;
      }
      files.crash(rng);
      // Then somebody removes each COMMIT of what was promised last, and of what is newer.
      const std::vector<Found> all = find_checkpoints(RootIn{files}).value();
      for (const Found& f : all)
        if (f.committed && f.id.step >= acknowledged) REQUIRE(files.remove_file(Path{"/ckpts/ckpt"} / to_string(f.id) / commit_file).ok());
      TestJob next{files, 1, 2};
      const auto start = next.start();
      REQUIRE_FALSE(start.ok());
      CHECK(start.failure().code == Code::not_found);
      CHECK(start.failure().remedy == Remedy::fix_config);
      // The newest that is known: the promised one, or one whose acknowledgement was durable and not yet told.
      const std::vector<CheckpointId> known = find_acknowledged(RootIn{files}).value();
      REQUIRE_FALSE(known.empty());
      CHECK(known.back().step >= acknowledged);
      CHECK_THAT(message(start.failure()), Contains("step " + std::to_string(known.back().step)));
      const auto before = files.all_files();
      TestJob wrong{files, 1, 3};
      CHECK_FALSE(wrong.begin_anew(7).ok());
      TestJob anew{files, 1, 4};
      const auto given_up = anew.begin_anew(known.back().step);
      REQUIRE(said(given_up) == "");
      CHECK((!given_up->choice || given_up->choice->step < acknowledged));
      for (const Path& path : before)
        CHECK((path.string().find(".tmp-") != std::string::npos || files.open(path).ok()));  // nothing is deleted
      TestJob after{files, 1, 5};
      CHECK(said(after.start()) == "");  // without the option
      if (!killed) break;
      REQUIRE(at < 2000);
    }
  });
}

TEST_CASE("after power loss during a start that gives up a loss, the next start names the same loss or it is settled", "[checkpoint]") {
  for (const bool fences_gone : {false, true})
    for_all_seeds(3, [&](Rng& rng) {
      for (std::uint64_t at = 0;; ++at) {
        FaultyFiles files;
        auto job = job_with_one_checkpoint(files);
        REQUIRE(said(job->save(20)) == "");
        if (fences_gone)
          for (const Path& path : files.all_files())
            if (path.string().starts_with("/ckpts/gens/")) REQUIRE(files.remove_file(path).ok());
        if (!fences_gone) REQUIRE(files.remove_file("/ckpts/ckpt/s000000000020.g00000001.a01/COMMIT").ok());
        if (fences_gone) REQUIRE(files.sync_directory("/ckpts/gens").ok());
        else REQUIRE(files.sync_directory("/ckpts/ckpt/s000000000020.g00000001.a01").ok());
        const LossName name = fences_gone ? LossName{0, 1} : LossName{20, 1};
        const std::uint64_t goes_on_from = fences_gone ? 20 : 10;
        INFO("power lost at operation " << at << (fences_gone ? ", fences gone" : ", COMMIT gone"));
        files.arm(FaultyFiles::Fault{.at = at, .half_done = rng.chance(0.5)});
        bool killed = false;
        try {
          TestJob anew{files, 1, 2};
          if (!anew.begin_anew(name).ok()) FAIL("a start fails without a fault");
        } catch (const Killed&) {
          killed = true;
        }
        files.crash(rng);
        files.arm(std::nullopt);
        TestJob next{files, 1, 3};
        const auto start = next.start();
        if (start.ok()) {
          REQUIRE(start->choice->step == goes_on_from);
        } else {
          REQUIRE(killed);
          REQUIRE_THAT(message(start.failure()), Contains("with --begin_anew " + to_string(name) + " "));
        }
        TestJob again{files, 1, 4};
        const auto settled = again.begin_anew(name);
        REQUIRE(said(settled) == "");
        REQUIRE(settled->choice->step == goes_on_from);
        REQUIRE(said(again.save(20 + goes_on_from)) == "");
        REQUIRE(recover(files, 5, 2) == 20 + goes_on_from);
        if (!killed) break;
        REQUIRE(at < 2000);
      }
    });
}

TEST_CASE("power lost at any operation while old fences are removed: the next start goes on, and no fence is used again", "[checkpoint]") {
  for_all_seeds(2, [](Rng& rng) {
    for (std::uint64_t at = 0;; ++at) {
      FaultyFiles files;
      auto job = job_with_one_checkpoint(files);
      for (std::uint64_t seed = 2; seed < 38; ++seed) REQUIRE(TestJob{files, 1, seed}.start().ok());
      REQUIRE(said(job->restart()) == "");
      REQUIRE(said(job->save(20)) == "");
      const FenceNumber highest = highest_fence(RootIn{files}).value();
      INFO("power lost at operation " << at);
      files.arm(FaultyFiles::Fault{.at = at, .half_done = rng.chance(0.5)});
      bool killed = false;
      try {
        (void)job->ranks[0].retain(2);
      } catch (const Killed&) {
        killed = true;
      }
      files.crash(rng);
      files.arm(std::nullopt);
      TestJob next{files, 1, 50};
      const auto start = next.start();
      REQUIRE(said(start) == "");
      REQUIRE(start->choice->step == 20);
      REQUIRE(start->fence > highest);
      REQUIRE(recover(files, 51, 2) == 20u);
      if (!killed) break;
      REQUIRE(at < 2000);
    }
  });
}

TEST_CASE("a job that starts between any two operations of another's save inherits what that one promised", "[checkpoint]") {
  bool refused = false, promised = false;
  for (std::uint64_t at = 0;; ++at) {
    FaultyFiles files;
    auto older = job_with_one_checkpoint(files);
    TestJob newer{files, 3, 2};
    std::optional<Start> start;
    files.arm(std::nullopt);
    files.before = [&](std::uint64_t number) {
      if (number == at) start = newer.start().value();
    };
    const auto saved = older->save(20);
    files.before = nullptr;
    INFO("the newer job starts before operation " << at);
    if (saved.ok() && start) {
      promised = true;
      REQUIRE(start->choice->step == 20);
    }
    if (!saved.ok()) {
      refused = true;
      CHECK(saved.failure().code == Code::refused);
      CHECK_THAT(message(saved.failure()), Contains("fence 2") || Contains("fence"));
    }
    if (!start) break;
    REQUIRE(said(newer.load(*start)) == "");
    REQUIRE(said(newer.save(30)) == "");
    REQUIRE(said(newer.ranks[0].retain(2)) == "");
    CHECK_FALSE(older->save(40).ok());
    CHECK(recover(files, 3, 1) == 30u);
    REQUIRE(at < 2000);
  }
  CHECK(refused);
  CHECK(promised);  // after the last look the acknowledgement is written; whoever claims then finds the COMMIT
}

TEST_CASE("a save made between any two operations of another job's start is inherited or refused", "[checkpoint]") {
  bool refused = false, promised = false;
  for (std::uint64_t at = 0;; ++at) {
    FaultyFiles files;
    auto older = job_with_one_checkpoint(files);
    TestJob newer{files, 3, 2};
    std::optional<Result<void>> saved;
    files.arm(std::nullopt);
    files.before = [&](std::uint64_t number) {
      if (number == at) saved = older->save(20);
    };
    const auto start = newer.start();
    files.before = nullptr;
    INFO("the older job saves before operation " << at << " of the newer one's start");
    REQUIRE(said(start) == "");
    if (!saved) break;
    (saved->ok() ? promised : refused) = true;
    if (saved->ok()) REQUIRE(start->choice->step == 20);
    REQUIRE(said(newer.load(*start)) == "");
    REQUIRE(at < 2000);
  }
  CHECK(refused);
  CHECK(promised);
}

TEST_CASE("two starts at once, at any interleaving, get different fences, and one of them saves", "[checkpoint]") {
  for (std::uint64_t at = 0;; ++at) {
    FaultyFiles files;
    (void)job_with_one_checkpoint(files);
    TestJob a{files, 1, 2}, b{files, 1, 3};
    std::optional<Start> b_start;
    files.arm(std::nullopt);
    files.before = [&](std::uint64_t number) {
      if (number == at) b_start = b.start().value();
    };
    const auto a_start = a.start();
    files.before = nullptr;
    INFO("b starts before operation " << at << " of a's start");
    REQUIRE(said(a_start) == "");
    if (!b_start) break;
    REQUIRE(a_start->fence != b_start->fence);
    const bool a_saved = a.save(20).ok(), b_saved = b.save(20).ok();
    CHECK(a_saved == (a_start->fence > b_start->fence));
    CHECK(b_saved == (b_start->fence > a_start->fence));
    CHECK(recover(files, 4, 1) == 20u);
    REQUIRE(at < 2000);
  }
}
