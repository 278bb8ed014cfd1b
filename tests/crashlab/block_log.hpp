#pragma once
/// \file What a file system wrote to its disk, in order: recorded, replayed up to any point, with or without what a disk may lose.
///
/// qemu-storage-daemon offers an image as a file by FUSE, and notes each write and flush in the format of dm-log-writes. A loop device on that
/// file takes the file system. No kernel module, no device mapper.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

#include "tests/support/spawn.hpp"

namespace elrun::test {

/// The mounts of this process are its own from here on, and so are the loop devices behind them: they end with it. Why not, or nothing.
[[nodiscard]] std::string own_mounts();

/// An image on a loop device, mounted. \throws std::runtime_error
class MountedImage {
 public:
  MountedImage(const std::string& image, std::string at, const std::string& type, const std::string& options);
  ~MountedImage();
  MountedImage(const MountedImage&) = delete;
  MountedImage& operator=(const MountedImage&) = delete;

 private:
  std::string at_;
};

/// A file system of which a crash test makes images.
struct FileSystem {
  std::string type;     ///< As mount(2) knows it.
  std::string make;     ///< mkfs and its options; the image follows.
  std::string options;  ///< Of the mount.
  std::uint64_t bytes;  ///< Of the image.
};
/// Those that this machine can make and mount.
[[nodiscard]] std::vector<FileSystem> file_systems();

/// An image that is recorded, as a file `exported()` for a loop device.
class BlockRecorder {
 public:
  /// `directory`: where its files go; they are as large as all that is written. \throws std::runtime_error
  BlockRecorder(std::string directory, const FileSystem& what);
  ~BlockRecorder();
  [[nodiscard]] std::string exported() const { return directory_ + "/exported.img"; }
  /// How many writes and flushes there were so far.
  [[nodiscard]] std::uint64_t entries() const;
  /// No more writes come: all that is unmounted.
  void finish();

  /// The disk after the first `count` entries. `lossy`: of what was written after the last flush, each write is there or not, as
  /// it says; else all are. Counts must not fall from call to call.
  void make_state(std::uint64_t count, Rng* lossy, const std::string& image);

 private:
  struct Entry {
    std::uint64_t sector = 0, bytes = 0, flags = 0, data = 0;  // data: where its bytes are in the log
  };
  void read_log();
  void apply(const Entry& entry, int image) const;
  std::string directory_;
  std::unique_ptr<Job> daemon_;
  std::vector<Entry> log_;
  std::uint64_t at_ = 0;  // entries that the running image has
};

}  // namespace elrun::test
