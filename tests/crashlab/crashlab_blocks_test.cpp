// Power loss on real file systems: a writer saves checkpoints, what the file system writes to its disk is recorded, and the disk is made anew as it was after
// any of these writes, also without some that no flush had followed. A start on each has to find what was acknowledged.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <sys/mount.h>

#include "tests/crashlab/block_log.hpp"
#include "tests/support/checkpoint_job.hpp"

namespace elrun::test {
namespace {

bool full() { return std::getenv("ELRUN_FULL") != nullptr; }

/// The system's files without durability: what a program without syncs would leave. The control of the laboratory.
class UnsyncedFiles final : public Files {
 public:
  class Unsynced final : public WritableFile {
   public:
    explicit Unsynced(std::unique_ptr<WritableFile> file) : file_{std::move(file)} {}
    Result<void> write_at(std::uint64_t offset, ByteSpan data) override { return file_->write_at(offset, data); }
    Result<void> reserve(Bytes size) override { return file_->reserve(size); }
    Result<void> sync() override { return {}; }
    Result<void> close() override { return file_->close(); }

   private:
    std::unique_ptr<WritableFile> file_;
  };
  Result<std::unique_ptr<WritableFile>> create(const Path& path) override {
    ELRUN_TRY_ASSIGN(auto file, files_.create(path));
    return std::unique_ptr<WritableFile>{std::make_unique<Unsynced>(std::move(file))};
  }
  Result<std::unique_ptr<ReadableFile>> open(const Path& path) override { return files_.open(path); }
  Result<void> link(const Path& from, const Path& to) override { return files_.link(from, to); }
  Result<void> rename(const Path& from, const Path& to) override { return files_.rename(from, to); }
  Result<void> remove_file(const Path& path) override { return files_.remove_file(path); }
  Result<void> make_directory(const Path& path) override { return files_.make_directory(path); }
  Result<void> remove_directory(const Path& path) override { return files_.remove_directory(path); }
  Result<std::vector<std::string>> list(const Path& path) override { return files_.list(path); }
  Result<void> sync_directory(const Path&) override { return {}; }
  Result<Bytes> space_left(const Path& path) override { return files_.space_left(path); }

 private:
  PosixFiles files_;
};

/// A tmpfs for images, which goes with this process's mounts.
class Images {
 public:
  Images() { is_mounted_ = ::mount("elrun-crashlab", directory_.path().c_str(), "tmpfs", 0, "size=4g,mode=0700") == 0; }
  ~Images() {
    if (is_mounted_) (void)::umount2(directory_.path().c_str(), MNT_DETACH);
  }
  [[nodiscard]] std::string operator/(const std::string& name) const { return directory_.path() + "/" + name; }

 private:
  TemporaryDirectory directory_;
  bool is_mounted_ = false;
};

/// One that spans some blocks of the disk.
ModelTable lab_model() {
  ModelTable model = small_model();
  model.units[0].elements = 40'000, model.units[0].tensors = {};
  return model;
}

struct Acknowledged {
  std::uint64_t step = 0, entries = 0;  // of the log when the save returned
};

/// Saves with retention, and begins anew in between as another generation; with what was promised when.
std::vector<Acknowledged> save_some(Files& files, const BlockRecorder& recorder, const std::string& root, std::uint64_t seed,
                                    unsigned saves) {
  std::vector<Acknowledged> all;
  std::uint64_t step = 0;
  for (std::uint64_t generation = 1; generation <= 2; ++generation) {
    TestJob job{files, static_cast<std::uint32_t>(1 + (seed + generation) % 3), seed * 10 + generation, lab_model(), 1, "run", root};
    REQUIRE(said(job.start()) == "");
    for (unsigned i = 0; i < saves; ++i) {
      REQUIRE(said(job.save(++step)) == "");
      all.push_back({step, recorder.entries()});
      REQUIRE(said(job.ranks[0].retain(2)) == "");
    }
  }
  return all;
}

/// What a start on this disk came to: the step from which it goes on, every byte checked; or why it does not.
std::string start_on(const std::string& image, const std::string& at, const FileSystem& what, std::uint64_t seed, std::uint64_t promised) {
  try {
    const MountedImage mounted{image, at, what.type, what.options};
    PosixFiles files;
    TestJob job{files, static_cast<std::uint32_t>(1 + seed % 5), seed + 1000, lab_model(), 1, "run", at + "/root"};
    const auto start = job.start();
    if (!start.ok()) return message(start.failure());
    const std::uint64_t found = start->choice ? start->choice->step : 0;
    if (found < promised) return "it goes on from step " + std::to_string(found);
    return start->choice ? said(job.load(*start)) : "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

struct Tally {
  unsigned states = 0, lost = 0;
  std::string first;  // why the first one is lost
};

/// `from`: entries before which no state is made.
Tally try_states(BlockRecorder& recorder, const std::vector<Acknowledged>& acknowledged, std::uint64_t from, unsigned count,
                 const Images& images, const FileSystem& what, std::uint64_t seed) {
  Rng rng{seed};
  std::vector<std::pair<std::uint64_t, bool>> states;  // entries, and whether unflushed writes may be lost
  const std::uint64_t end = acknowledged.back().entries;
  for (const Acknowledged& a : acknowledged) states.emplace_back(a.entries, rng.chance(0.5));
  while (states.size() < count) states.emplace_back(from + rng.below(end - from + 1), rng.chance(0.5));
  std::sort(states.begin(), states.end());
  Tally tally;
  for (const auto& [entries, lossy] : states) {
    std::uint64_t promised = 0;
    for (const Acknowledged& a : acknowledged)
      if (a.entries <= entries) promised = std::max(promised, a.step);
    const std::string image = images / "state.img";
    recorder.make_state(entries, lossy ? &rng : nullptr, image);
    const std::string why = start_on(image, images / "state", what, entries, promised);
    ++tally.states;
    if (why.empty()) continue;
    if (tally.lost++ == 0)
      tally.first = "after " + std::to_string(entries) + " writes" + (lossy ? ", some of which the disk lost" : "") + ", step " +
                    std::to_string(promised) + " was acknowledged: " + why;
  }
  return tally;
}

Tally laboratory(const FileSystem& what, Files& files, std::uint64_t seed, unsigned saves, unsigned count, bool is_control) {
  const Images images;
  BlockRecorder recorder{images / "recorder", what};
  std::vector<Acknowledged> acknowledged;
  {
    const MountedImage disk{recorder.exported(), images / "disk", what.type, what.options};
    acknowledged = save_some(files, recorder, images / "disk/root", seed, saves);
  }
  recorder.finish();
  return try_states(recorder, acknowledged, is_control ? acknowledged.front().entries : 0, count, images, what, seed);
}

bool is_skipped() {
  const std::string why = own_mounts();
  if (!why.empty()) WARN("SKIPPED: " << why);
  return !why.empty();
}

}  // namespace

TEST_CASE("power lost after any write to the disk loses no checkpoint that was acknowledged", "[crashlab]") {
  if (is_skipped()) return;
  PosixFiles files;
  unsigned all = 0;
  for (const FileSystem& what : file_systems()) {
    if (!full() && what.type != "ext4") continue;
    for (std::uint64_t seed = 1; seed <= (full() ? 10u : 1u); ++seed) {
      INFO(what.type << ", seed " << seed);
      const Tally tally = laboratory(what, files, seed, 5, what.type == "btrfs" ? 40 : 150, false);  // its mount takes half a second
      INFO(tally.first);
      CHECK(tally.lost == 0);
      all += tally.states;
      std::printf("crashlab: %s, seed %llu: %u states of the disk, %u lost\n", what.type.c_str(), static_cast<unsigned long long>(seed),
                  tally.states, tally.lost);
    }
  }
  CHECK(all > 0);
}

TEST_CASE("without syncs the same laboratory loses nearly all", "[crashlab]") {
  if (is_skipped()) return;
  UnsyncedFiles files;
  for (const FileSystem& what : file_systems()) {
    if (!full() && what.type != "ext4") continue;
    const Tally tally = laboratory(what, files, 1, 10, 40, true);
    INFO(what.type << ": " << tally.lost << " of " << tally.states << " lost");
    std::printf("crashlab: %s without syncs: %u states of the disk, %u lost\n", what.type.c_str(), tally.states, tally.lost);
    CHECK(tally.lost * 100 >= tally.states * 95);
  }
}

}  // namespace elrun::test
