#include "checkpoint/tiers/files_tier.hpp"

#include <algorithm>

#include "checkpoint/storage/storage.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::string_view preparation = ".tmp-";

}  // namespace

Result<ByteVector> Tier::get_all(const std::string& name, Bytes max) {
  ELRUN_TRY_ASSIGN(const std::uint64_t bytes, size(name));
  if (bytes > max.value()) return Failure{Code::corrupt, Remedy::fix_config, name + " is longer than anything of its kind"};
  return get(name, 0, bytes);
}

/// As a part is published, so a reader never meets half of it.
Result<void> FilesTier::put(const std::string& name, ByteSpan bytes) {
  const Path path = root_ / name;
  ELRUN_TRY(files_.make_directories(path.parent_path()));
  return publish_once(files_, path.parent_path(), path.filename().string(), unique_, std::string{as_text(bytes)});
}

Result<void> FilesTier::publish(const std::string& name, ByteSpan bytes) { return put(name, bytes); }

Result<std::vector<std::string>> FilesTier::list(const std::string& directory) {
  auto names = files_.list(root_ / directory);
  if (!names.ok() && names.failure().code == Code::not_found) return std::vector<std::string>{};
  if (!names.ok()) return names;
  std::vector<std::string> there;
  for (const std::string& name : *names) {
    if (name.find(preparation) != std::string::npos) continue;
    const auto below = files_.list(root_ / directory / name);
    if (!below.ok() || !below->empty()) there.push_back(name);  // a file, or a directory that has something
  }
  return there;
}

Result<std::uint64_t> FilesTier::size(const std::string& name) {
  ELRUN_TRY_ASSIGN(const auto file, files_.open(root_ / name));
  return file->size();
}

Result<ByteVector> FilesTier::get(const std::string& name, std::uint64_t offset, std::uint64_t length) {
  ELRUN_TRY_ASSIGN(const auto file, files_.open(root_ / name));
  ELRUN_TRY_ASSIGN(const std::uint64_t bytes, file->size());  // before anything of that length is asked of the memory
  if (offset > bytes || length > bytes - offset)
    return Failure{Code::corrupt, Remedy::fix_config, (root_ / name).string() + " ends too early"};
  ByteVector out(length);
  ELRUN_TRY(file->read_at(offset, out));
  return out;
}

Result<void> FilesTier::remove(const std::string& name) {
  const Path path = root_ / name;
  const auto removed = files_.remove_file(path);
  if (!removed.ok() && removed.failure().code != Code::not_found) return removed;
  auto synced = files_.sync_directory(path.parent_path());  // also where an earlier try of this removal came no further
  if (!synced.ok() && synced.failure().code != Code::not_found) return synced;
  // What is below a checkpoint's own directory leaves none behind; those above it stay.
  if (std::count(name.begin(), name.end(), '/') > 1) (void)files_.remove_directory(path.parent_path());
  return {};
}

}  // namespace elrun::inline v0
