#pragma once
/// \file TimedFiles: a storage whose operations end. A network mount whose server is gone holds a system call for ever, and whoever made it.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/files.hpp"

namespace elrun::inline v0 {

struct StorageLimits {
  /// Each operation is over within this: longer than the failover of a network file system, during which it answers nobody.
  Duration operation = std::chrono::seconds{300};
  /// And within the time that its bytes take at this many per second: a rank's part of a storage that very many write to at once. To a sync belong all
  /// bytes since the last one.
  Bytes rate = 2_MiB;
  /// Of so many bytes at most: a file is synced as often as it has so many that are not. So the longest operation is shorter than the time in which
  /// peers give a rank up, however large its part is, and a hang ends the save and not their generation.
  Bytes at_once = 512_MiB;
  /// What any operation may take.
  [[nodiscard]] constexpr Duration longest() const { return limit_of(at_once.value()); }
  [[nodiscard]] constexpr Duration limit_of(std::uint64_t bytes) const {
    const std::uint64_t counted = std::min(bytes, at_once.value());
    const double time = static_cast<double>(counted) / static_cast<double>(std::max<std::uint64_t>(1, rate.value()));
    return operation + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time));
  }
};
/// With ELRUN_STORAGE_LIMIT, the seconds that an operation may take; empty: as above. Fails for what is no such number.
[[nodiscard]] Result<StorageLimits> storage_limits(std::string_view of_environment);

/// Runs each operation on a thread of its own kind. One that is not over in time fails with `deadline_passed`, names what was done for how long, and goes on by
/// itself. **As long as one such is stuck, the storage hangs**: all others fail at once, so no more than a few threads are ever stuck. When it has
/// returned, the storage works again; a file with an operation that was given up is dead. Thread-safe.
///
/// Nothing waits for what is stuck: neither a destructor, of this or of a file, nor the end of the process. A forked child may only destroy it. Memory that a read goes to is copied at its end, so a
/// late one writes to no memory of the caller. Memory that a stuck write comes from may be changed or freed: what it still writes is garbage, in a file that
/// was given up.
class TimedFiles final : public Files {
 public:
  explicit TimedFiles(std::shared_ptr<Files> inner, StorageLimits limits = {});
  ~TimedFiles() override;

  Result<std::unique_ptr<WritableFile>> create(const Path& path) override;
  Result<std::unique_ptr<ReadableFile>> open(const Path& path) override;
  Result<void> link(const Path& from, const Path& to) override;
  Result<void> rename(const Path& from, const Path& to) override;
  Result<void> remove_file(const Path& path) override;
  Result<void> make_directory(const Path& path) override;
  Result<void> remove_directory(const Path& path) override;
  Result<std::vector<std::string>> list(const Path& path) override;
  Result<void> sync_directory(const Path& path) override;
  Result<Bytes> space_left(const Path& path) override;
  std::string missing_mount(const Path& path) override;
  /// Also of an operation that was given up and is still stuck. Closes are nobody's wait.
  [[nodiscard]] StorageActivity activity() override;
  void set_time_left(std::optional<Duration> time) override;

  class Helpers;

 private:
  std::shared_ptr<Files> inner_;
  std::shared_ptr<Helpers> helpers_;
};

}  // namespace elrun::inline v0
