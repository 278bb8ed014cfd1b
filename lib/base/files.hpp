#pragma once
/// \file All file access of elrun goes through Files, so that a test can lose, tear or refuse what was not synced.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

using Path = std::filesystem::path;

/// A file being written by this process alone. Not durable before `sync` succeeds; a failed `sync` makes the file dead:
/// it is never retried, for the kernel may have dropped the pages.
class WritableFile {
 public:
  static constexpr std::size_t direct_alignment = 4096, direct_bytes_min = 64 << 10;

  virtual ~WritableFile() = default;
  /// Of different bytes from several threads at once, where its Files may be used so.
  virtual Result<void> write_at(std::uint64_t offset, ByteSpan data) = 0;
  /// Whether large writes cost less where memory and offset are multiples of `direct_alignment`. May change from true to false.
  [[nodiscard]] virtual bool likes_aligned() const { return false; }
  /// Reserves space, so that a full disk is met before the data is written. A file system that cannot is no error.
  virtual Result<void> reserve(Bytes size) = 0;
  virtual Result<void> sync() = 0;
  /// Reports what only close(2) knows. The destructor closes silently.
  virtual Result<void> close() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  [[nodiscard]] virtual Result<std::uint64_t> size() = 0;
  /// Fills all of `out`, or fails with `corrupt` when the file ends before.
  virtual Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) = 0;
};

/// What the callers of a storage wait for.
struct StorageActivity {
  std::uint64_t begun = 0;  ///< Operations so far.
  std::string longest;      ///< The one that has been under way for longest: "list /root/gens". Empty: there is none.
  Duration for_long{};      ///< Since then.
  Duration limit{};         ///< After which any operation has failed; 0: nobody knows one.
};

class Files {
 public:
  virtual ~Files() = default;
  /// A new file; an existing one is `already_exists`.
  virtual Result<std::unique_ptr<WritableFile>> create(const Path& path) = 0;
  /// A regular file. A directory, FIFO, socket or device under that name is `corrupt`, and never read or waited for.
  virtual Result<std::unique_ptr<ReadableFile>> open(const Path& path) = 0;
  /// A second name for a file; never overwrites (`already_exists`). The commit of everything in elrun.
  virtual Result<void> link(const Path& from, const Path& to) = 0;
  virtual Result<void> rename(const Path& from, const Path& to) = 0;
  virtual Result<void> remove_file(const Path& path) = 0;
  virtual Result<void> make_directory(const Path& path) = 0;  ///< An existing one is `already_exists`.
  virtual Result<void> remove_directory(const Path& path) = 0;
  /// Names in a directory, sorted; existence is decided by this, never by stat (NFS caches lie).
  virtual Result<std::vector<std::string>> list(const Path& path) = 0;
  virtual Result<void> sync_directory(const Path& path) = 0;
  /// Free space for this user on the file system of `path`.
  virtual Result<Bytes> space_left(const Path& path) = 0;
  /// The mount point at or above `path` that this machine is configured to have, and has not; empty: there is none, or nobody knows.
  virtual std::string missing_mount(const Path&) { return {}; }
  /// From any thread, and without waiting for the storage. Nothing, where nobody keeps count.
  [[nodiscard]] virtual StorageActivity activity() { return {}; }
  /// From now on operations have so much time, all of them together; nothing: as much as each may take. For a caller that can go on without an answer. Where operations have no limit this does nothing.
  virtual void set_time_left(std::optional<Duration>) {}

  /// Creates, writes, syncs, closes. The name is durable only after sync_directory.
  Result<void> write_durably(const Path& path, ByteSpan data);
  /// The whole file, if it is no longer than `max`.
  Result<ByteVector> read_all(const Path& path, Bytes max);
  /// make_directory for each missing part, each parent synced.
  Result<void> make_directories(const Path& path);
};

/// The real thing. Large aligned reads and writes go past the page cache where the file system has that.
class PosixFiles final : public Files {
 public:
  /// Hears, once and on any thread, that a file system does not take writes past the page cache.
  using Told = std::function<void(const std::string&)>;
  explicit PosixFiles(Told told = {});
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

  class Notes;

 private:
  std::shared_ptr<Notes> notes_;  // files that were given up may outlive this
};

}  // namespace elrun::inline v0
