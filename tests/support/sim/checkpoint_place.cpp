#include "tests/support/sim/checkpoint_place.hpp"

#include <string>

#include "checkpoint/tiers/files_tier.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/support/object_tier.hpp"
#include "tests/support/sim/checkpoint_truth.hpp"

namespace elrun::checkpoint_sim {
namespace {

class FileSystem final : public CheckpointPlace {
 public:
  explicit FileSystem(Path root) : root_{std::move(root)} {}
  test::Faults& faults() override { return files_; }
  std::unique_ptr<Tier> tier(std::uint64_t, const Saver& saver) override {
    return std::make_unique<FilesTier>(files_, root_, unique_name(saver));
  }
  std::vector<Path> all_files() const override { return files_.all_files(); }
  ByteVector content(const Path& path) const override { return files_.content(path); }
  void overwrite(const Path& path, ByteVector content) override { files_.overwrite(path, std::move(content)); }
  void remove(const Path& path) override {
    if (!files_.remove_file(path).ok() || !files_.sync_directory(path.parent_path()).ok()) throw Broken{"the simulator cannot remove"};
  }
  void power_loss(Rng& rng) override { files_.crash(rng); }
  void heal() override {}

 private:
  test::FaultyFiles files_;
  Path root_;
};

class ObjectStore final : public CheckpointPlace {
 public:
  ObjectStore(Path root, ManualClock& clock, std::uint64_t seed, bool lists_are_stale)
      : root_{std::move(root)}, bucket_{clock, root_.string()}, lists_are_stale_{lists_are_stale} {
    bucket_.rng = Rng{seed ^ 0x6f626a};
    bucket_.lost = bucket_.busy = 0.03, bucket_.late = 0.01;
    bucket_.late_by = 5s;
    bucket_.stale_for = lists_are_stale ? 10s : 200ms;
  }
  test::Faults& faults() override { return bucket_; }
  std::unique_ptr<Tier> tier(std::uint64_t number, const Saver&) override {
    return std::make_unique<test::ObjectTier>(bucket_, static_cast<int>(number), !lists_are_stale_);
  }
  std::vector<Path> all_files() const override {
    std::vector<Path> paths;
    for (const std::string& name : bucket_.all_names()) paths.push_back(root_ / name);
    return paths;
  }
  ByteVector content(const Path& path) const override { return bucket_.content(name_of(path)); }
  void overwrite(const Path& path, ByteVector content) override { bucket_.overwrite(name_of(path), std::move(content)); }
  void remove(const Path& path) override { bucket_.lose(name_of(path)); }
  void power_loss(Rng&) override { bucket_.arm(std::nullopt); }  // of the clients
  void heal() override {
    bucket_.lost = bucket_.busy = bucket_.late = 0;
    bucket_.settle();
  }

 private:
  [[nodiscard]] std::string name_of(const Path& path) const { return path.lexically_relative(root_).string(); }

  Path root_;
  test::Bucket bucket_;
  bool lists_are_stale_;
};

}  // namespace

std::unique_ptr<CheckpointPlace> file_system(const Path& root) { return std::make_unique<FileSystem>(root); }
std::unique_ptr<CheckpointPlace> object_store(const Path& root, ManualClock& clock, std::uint64_t seed, bool lists_are_stale) {
  return std::make_unique<ObjectStore>(root, clock, seed, lists_are_stale);
}

}  // namespace elrun::checkpoint_sim
