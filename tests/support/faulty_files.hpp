#pragma once
/// \file A storage in memory that keeps what was synced and may lose everything else, fails or kills at the n-th
/// operation, and lets another party act between any two operations. The adversary of every test of the checkpoint. Several threads may use it, one at a time.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

#include "lib/base/files.hpp"

namespace elrun::test {

/// Thrown out of an operation: the process died in it.
struct Killed {};

class FaultyFiles final : public Files {
 public:
  FaultyFiles();

  /// What happens at one operation, counted from the last `arm`.
  struct Fault {
    std::uint64_t at = 0;
    int error = 0;           ///< An errno; 0: the process dies.
    bool sticky = false;     ///< The error stays for all that could meet it (ENOSPC: whatever takes space).
    bool half_done = false;  ///< A kill: the operation took effect before it. A failed write: half of it did.
  };
  void arm(std::optional<Fault> fault);
  [[nodiscard]] std::uint64_t operations() const { return operations_; }  ///< Since the last `arm`.
  [[nodiscard]] bool fired() const { return fired_; }
  /// Called before each operation with its number, except for operations inside the call itself.
  std::function<void(std::uint64_t)> before;

  /// The errno with which every operation on a path fails; 0: it does not.
  std::function<int(const Path&)> broken;

  /// Power loss: what was synced is there; of all else each page and each name is there or not, as `rng` says.
  void crash(Rng& rng);

  /// What is now in a file; for planting damage (durable at once).
  [[nodiscard]] ByteVector content(const Path& path) const;
  void overwrite(const Path& path, ByteVector content);
  [[nodiscard]] std::vector<Path> all_files() const;

  Bytes space = 1_GiB;
  std::string unmounted{};  ///< What missing_mount says.
  bool has_links = true;    ///< The file system knows hard links.
  std::uint64_t bytes_read = 0;

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
  std::string missing_mount(const Path&) override { return unmounted; }

  struct Node;

 private:
  friend class FaultyWritable;
  friend class FaultyReadable;
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  /// Counts an operation, then runs `effect` unless a fault says otherwise.
  Result<void> operation(const char* verb, const Path& path, bool takes_space, const std::function<Result<void>(bool half)>& effect);
  [[nodiscard]] std::shared_ptr<Node> find(const Path& path) const;
  [[nodiscard]] std::shared_ptr<Node> parent(const Path& path) const;

  std::recursive_mutex mutex_;  // `before` comes back
  std::shared_ptr<Node> root_;
  std::optional<Fault> fault_;
  std::uint64_t operations_ = 0;
  bool fired_ = false;
  bool inside_ = false;
};

}  // namespace elrun::test
