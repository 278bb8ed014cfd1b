#include "checkpoint/storage/storage.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "checkpoint/storage/in_parallel.hpp"
#include "checkpoint/storage/shard_file.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0 {
namespace {

Result<std::vector<std::string>> list_if_there(Files& files, const Path& directory) {
  auto names = files.list(directory);
  if (!names.ok() && names.failure().code == Code::not_found) return std::vector<std::string>{};
  return names;
}

/// Whether it is a second name that is refused, and not any new one.
bool can_make_file(Files& files, const Path& directory, const std::string& unique) {
  const Path probe = directory / ("probe.tmp-" + unique);
  const bool is_made = files.write_durably(probe, as_bytes(std::string_view{"probe"})).ok();
  (void)files.remove_file(probe);
  return is_made;
}

}  // namespace

Result<void> publish_once(Files& files, const Path& directory, const std::string& name, const std::string& unique,
                          const std::string& text) {
  const Path prepared = directory / (name + ".tmp-" + unique);
  auto written = files.write_durably(prepared, as_bytes(text));
  if (!written.ok() && written.failure().code == Code::already_exists) {  // left by an earlier try of this very writer
    ELRUN_TRY(files.remove_file(prepared));
    written = files.write_durably(prepared, as_bytes(text));
  }
  if (!written.ok()) {
    (void)files.remove_file(prepared);  // a full disk must not stay full of us
    return written;
  }
  auto linked = files.link(prepared, directory / name);
  if (!linked.ok())
    if (const auto there = files.read_all(directory / name, manifest_bytes_max); there.ok() && as_text(*there) == text) linked = {};
  if (!linked.ok() && linked.failure().code == Code::not_permitted && can_make_file(files, directory, unique))
    linked = Failure{Code::invalid_argument, Remedy::fix_config,
                     fmt::format("{} is on a file system without hard links, which checkpoints need ({}): choose another directory",
                                 directory.string(), linked.failure().what)};
  const auto synced = linked.ok() ? files.sync_directory(directory) : Result<void>{};
  (void)files.remove_file(prepared);
  return linked.ok() ? synced : linked;
}

Result<std::vector<Found>> find_checkpoints(Files& files, const Path& root) {
  const Path directory = root / checkpoints_directory;
  ELRUN_TRY_ASSIGN(const auto names, list_if_there(files, directory));
  std::vector<Found> found;
  for (const std::string& name : names) {
    const auto id = parse_checkpoint_id(name);
    if (!id) continue;
    auto content = files.list(directory / name);
    if (!content.ok() && content.failure().code != Code::not_found) content = files.list(directory / name);  // a bad moment?
    if (!content.ok() && (content.failure().code == Code::not_found || content.failure().code == Code::invalid_argument))
      continue;  // moved to the trash since, or no directory
    if (!content.ok()) {
      found.push_back({*id, false, false, content.failure().what});
      continue;
    }
    const auto has = [&](const char* file) { return std::find(content->begin(), content->end(), file) != content->end(); };
    found.push_back({*id, has(commit_file), has(quarantine_file)});
  }
  return found;
}

Result<std::vector<FenceNumber>> find_fences(Files& files, const Path& root) {
  ELRUN_TRY_ASSIGN(const auto names, list_if_there(files, root / fences_directory));
  std::vector<FenceNumber> numbers;
  for (const std::string& name : names)
    if (const auto number = parse_fence_number(name)) numbers.push_back(*number);
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

Result<std::vector<FenceNumber>> find_published_fences(Files& files, const Path& root) {
  ELRUN_TRY_ASSIGN(const auto names, list_if_there(files, root / fences_directory));
  std::vector<FenceNumber> numbers;
  for (const std::string& name : names)
    if (const auto number = parse_fence_number(name); number && name == fence_name(*number)) numbers.push_back(*number);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result<std::vector<CheckpointId>> find_acknowledged(Files& files, const Path& root) {
  ELRUN_TRY_ASSIGN(const auto names, list_if_there(files, root / fences_directory));
  std::vector<CheckpointId> ids;
  for (const std::string& name : names)
    if (const auto id = parse_acknowledgement_name(name)) ids.push_back(*id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

Result<ByteVector> read_record(Files& files, const Path& path, Bytes max) {
  auto text = files.read_all(path, max);
  if (text.ok() || text.failure().code != Code::io) return text;
  text = files.read_all(path, max);
  if (text.ok() || text.failure().code != Code::io) return text;
  return corrupt(text.failure().what);
}

Result<CommitRecord> read_commit(Files& files, const Path& directory) {
  ELRUN_TRY_ASSIGN(const ByteVector text, files.read_all(directory / commit_file, commit_bytes_max));
  return decode_commit(text, (directory / commit_file).string());
}

Result<ReadManifest> read_manifest(Files& files, const Path& directory) {
  ELRUN_TRY_ASSIGN(const ByteVector text, files.read_all(directory / manifest_file, manifest_bytes_max));
  ELRUN_TRY_ASSIGN(Manifest manifest, decode_manifest(text, (directory / manifest_file).string()));
  return ReadManifest{std::move(manifest), crc32c(text)};
}

Result<ReadManifest> verify_manifest(Files& files, const Path& directory, const CheckpointId& id, const std::string& root) {
  ELRUN_TRY_ASSIGN(const CommitRecord commit, read_commit(files, directory));
  if (commit.id != id || commit.root != root)
    return corrupt(fmt::format("{} is of {} of root {}, not of root {}: a file in the wrong place", (directory / commit_file).string(),
                               to_string(commit.id), commit.root, root));
  const Path path = directory / manifest_file;
  ELRUN_TRY_ASSIGN(const ByteVector text, files.read_all(path, manifest_bytes_max));
  if (text.size() != commit.manifest_bytes)
    return corrupt(fmt::format("{} has {} bytes, COMMIT says {}", path.string(), text.size(), commit.manifest_bytes));
  const std::uint32_t crc = crc32c(text);
  const bool is_vouched_for = crc == commit.manifest_crc && to_hex(sha256(text)) == commit.manifest_sha256;
  if (!is_vouched_for && !ELRUN_PLANTED(checksum_of_the_manifest_skipped))
    return corrupt(
        fmt::format("{} has CRC-32C {:08x}, COMMIT says {:08x} (or their SHA-256 differ)", path.string(), crc, commit.manifest_crc));
  ELRUN_TRY_ASSIGN(Manifest manifest, decode_manifest(text, path.string()));
  if (manifest.id != id || manifest.root != root) return corrupt(fmt::format("{} is of {}", path.string(), to_string(manifest.id)));
  return ReadManifest{std::move(manifest), crc};
}

Result<void> verify_shards(Files& files, const Path& directory, const Manifest& manifest, std::span<const std::uint32_t> numbers,
                           unsigned at_once) {
  return all_in_parallel(numbers.size(), at_once,
                         [&](std::size_t i) -> Result<void> { return look_into_shard(files, directory, manifest.files[numbers[i]]); });
}

Result<ReadManifest> verify_checkpoint(Files& files, const Path& directory, const CheckpointId& id, const std::string& root,
                                       unsigned at_once) {
  ELRUN_TRY_ASSIGN(ReadManifest read, verify_manifest(files, directory, id, root));
  std::vector<std::uint32_t> all(read.manifest.files.size());
  std::iota(all.begin(), all.end(), 0u);
  ELRUN_TRY(verify_shards(files, directory, read.manifest, all, at_once));
  return read;
}

Result<void> remove_tree(Files& files, const Path& directory, unsigned at_once) {
  if (const auto link = files.remove_file(directory); link.ok() || link.failure().code == Code::not_found)
    return link.ok() ? link : Result<void>{};
  auto names = files.list(directory);
  if (!names.ok() && names.failure().code == Code::not_found) return {};
  if (!names.ok()) return std::move(names).failure();
  std::vector<Result<void>> removals(names->size());
  in_parallel(names->size(), at_once,
              [&](std::size_t i) { removals[i] = with_memory([&] { return files.remove_file(directory / (*names)[i]); }); });
  for (Result<void>& removal : removals)
    if (!removal.ok() && removal.failure().code != Code::not_found) return std::move(removal);
  auto removed = files.remove_directory(directory);
  if (!removed.ok() && removed.failure().code == Code::not_found) return {};
  return removed;
}

}  // namespace elrun::inline v0
