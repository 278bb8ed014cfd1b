#pragma once
/// \file A storage in memory that keeps what was synced and may lose everything else, fails or kills at the n-th
/// operation, and lets another party act between any two operations. The adversary of every test of the checkpoint. Several threads may use it, one at a time.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

#include "lib/base/files.hpp"
#include "tests/support/faults.hpp"

namespace elrun::test {

class FaultyFiles final : public Files, public Faults {
 public:
  FaultyFiles();

  /// Power loss: what was synced is there; of all else each page and each name is there or not, as `rng` says.
  void crash(Rng& rng);

  /// What is now in a file; for planting damage (durable at once).
  [[nodiscard]] ByteVector content(const Path& path) const;
  void overwrite(const Path& path, ByteVector content);
  [[nodiscard]] std::vector<Path> all_files() const;

  Bytes space = 1_GiB;
  std::optional<Bytes> disk{};  ///< What is stored takes space: there is so much in all, in place of `space`.
  [[nodiscard]] Bytes stored() const;
  std::string unmounted{};  ///< What missing_mount says.
  int refuses_links = 0;    ///< What the file system says of hard links where it has none; 0: it has.
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

  [[nodiscard]] std::shared_ptr<Node> find(const Path& path) const;
  [[nodiscard]] std::shared_ptr<Node> parent(const Path& path) const;

  std::shared_ptr<Node> root_;
};

}  // namespace elrun::test
