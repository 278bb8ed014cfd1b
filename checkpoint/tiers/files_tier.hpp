#pragma once
/// \file Shell: a directory tree as a tier.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tiers/tier.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// `files` outlives it, and is called from as many threads as this is. `unique` tells this process's preparations apart from those of others. `at_once`: how many files of a directory are removed at
/// the same time, by as many threads.
class FilesTier final : public Tier {
 public:
  FilesTier(Files& files, Path root, std::string unique = {}, unsigned at_once = 1)
      : files_{files}, root_{std::move(root)}, unique_{std::move(unique)}, at_once_{at_once} {
    if (!root_.has_filename() && root_.has_relative_path())
      root_ = root_.parent_path();  // with a slash at its end it would be its own parent
  }

  Result<std::unique_ptr<ReadableFile>> open(const std::string& name) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<Bytes> space_left() override;
  [[nodiscard]] std::string where(std::string_view name) const override;
  std::string missing_mount() override;

  Result<void> make_directories(const std::string& directory) override;
  Result<void> make_directory(const std::string& directory) override;
  /// Written and synced beside the name, linked, directory synced. A name that already holds the same text is success (a network file
  /// system may report the failure of a link that it made).
  Result<void> publish(const std::string& name, ByteSpan bytes) override;
  Result<void> put(const std::string& name, ByteSpan bytes) override;
  Result<std::unique_ptr<WritableFile>> create(const std::string& name) override;
  Result<void> make_durable(const std::string& directory) override;

  /// Of a directory somebody may keep elsewhere, behind a link: then the link goes, and what it leads to stays whole.
  Result<void> remove(const std::string& name) override;
  Result<void> discard(const std::string& name) override;
  Result<void> remove_all(const std::string& directory) override;
  Result<void> throw_away(const std::string& directory) override;
  Result<void> empty_trash() override;
  Result<void> set_aside(const std::string& name, const std::string& other) override;

 private:
  [[nodiscard]] Path path_of(std::string_view name) const { return name.empty() ? root_ : root_ / name; }
  [[nodiscard]] bool can_make_file(const Path& directory);
  Result<void> remove_tree(const Path& directory);

  Files& files_;
  Path root_;
  std::string unique_;
  unsigned at_once_;
};

}  // namespace elrun::inline v0
