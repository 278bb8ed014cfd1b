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

Result<std::vector<std::string>> list_if_there(Tier& tier, const std::string& directory) {
  auto names = tier.list(directory);
  if (!names.ok() && names.failure().code == Code::not_found) return std::vector<std::string>{};
  return names;
}

}  // namespace

Result<std::vector<Found>> find_checkpoints(Tier& tier) {
  ELRUN_TRY_ASSIGN(const auto names, list_if_there(tier, checkpoints_directory));
  std::vector<Found> found;
  for (const std::string& name : names) {
    const auto id = parse_checkpoint_id(name);
    if (!id) continue;
    auto content = tier.list(checkpoint_directory(*id));
    if (!content.ok() && content.failure().code != Code::not_found) content = tier.list(checkpoint_directory(*id));  // a bad moment?
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

Result<std::vector<FenceNumber>> find_fences(Tier& tier) {
  ELRUN_TRY_ASSIGN(const auto names, list_if_there(tier, fences_directory));
  std::vector<FenceNumber> numbers;
  for (const std::string& name : names)
    if (const auto number = parse_fence_number(name)) numbers.push_back(*number);
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

Result<std::vector<FenceNumber>> find_published_fences(Tier& tier) {
  ELRUN_TRY_ASSIGN(const auto names, list_if_there(tier, fences_directory));
  std::vector<FenceNumber> numbers;
  for (const std::string& name : names)
    if (const auto number = parse_fence_number(name); number && name == fence_name(*number)) numbers.push_back(*number);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result<std::vector<CheckpointId>> find_acknowledged(Tier& tier) {
  ELRUN_TRY_ASSIGN(const auto names, list_if_there(tier, fences_directory));
  std::vector<CheckpointId> ids;
  for (const std::string& name : names)
    if (const auto id = parse_acknowledgement_name(name)) ids.push_back(*id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

bool may_be_a_moment(Code why) { return why == Code::io || why == Code::unreachable; }

Result<ByteVector> read_record(Tier& tier, const std::string& name, Bytes max) {
  auto text = tier.get_all(name, max);
  if (text.ok() || !may_be_a_moment(text.failure().code)) return text;
  text = tier.get_all(name, max);
  if (text.ok() || text.failure().code != Code::io) return text;
  return corrupt(text.failure().what);
}

Result<CommitRecord> read_commit(Tier& tier, const std::string& directory) {
  const std::string name = name_in(directory, commit_file);
  ELRUN_TRY_ASSIGN(const ByteVector text, tier.get_all(name, commit_bytes_max));
  return decode_commit(text, tier.where(name));
}

Result<ReadManifest> read_manifest(Tier& tier, const std::string& directory) {
  const std::string name = name_in(directory, manifest_file);
  ELRUN_TRY_ASSIGN(const ByteVector text, tier.get_all(name, manifest_bytes_max));
  ELRUN_TRY_ASSIGN(Manifest manifest, decode_manifest(text, tier.where(name)));
  return ReadManifest{std::move(manifest), crc32c(text)};
}

std::string in_wrong_place(const CheckpointId& named, const std::string& named_root, const CheckpointId& id, const std::string& root) {
  return fmt::format("is of {} of root {}, and this is {}{}: a file in the wrong place", to_string(named), named_root, to_string(id),
                     root.empty() ? "" : fmt::format(" of root {}", root));
}

Result<ReadManifest> verify_manifest(Tier& tier, const std::string& directory, const CheckpointId& id, const std::string& root) {
  ELRUN_TRY_ASSIGN(const CommitRecord commit, read_commit(tier, directory));
  if (commit.id != id || commit.root != root)
    return corrupt(fmt::format("{} {}", tier.where(name_in(directory, commit_file)), in_wrong_place(commit.id, commit.root, id, root)));
  const std::string name = name_in(directory, manifest_file), where = tier.where(name);
  ELRUN_TRY_ASSIGN(const ByteVector text, tier.get_all(name, manifest_bytes_max));
  if (text.size() != commit.manifest_bytes)
    return corrupt(fmt::format("{} has {} bytes, COMMIT says {}", where, text.size(), commit.manifest_bytes));
  const std::uint32_t crc = crc32c(text);
  const bool is_vouched_for = crc == commit.manifest_crc && to_hex(sha256(text)) == commit.manifest_sha256;
  if (!is_vouched_for && !ELRUN_PLANTED(checksum_of_the_manifest_skipped))
    return corrupt(fmt::format("{} has CRC-32C {:08x}, COMMIT says {:08x} (or their SHA-256 differ)", where, crc, commit.manifest_crc));
  ELRUN_TRY_ASSIGN(Manifest manifest, decode_manifest(text, where));
  if (manifest.id != id || manifest.root != root)
    return corrupt(fmt::format("{} {}", where, in_wrong_place(manifest.id, manifest.root, id, root)));
  return ReadManifest{std::move(manifest), crc};
}

Result<void> verify_shards(Tier& tier, const std::string& directory, const Manifest& manifest, std::span<const std::uint32_t> numbers,
                           unsigned at_once) {
  return all_in_parallel(numbers.size(), at_once,
                         [&](std::size_t i) -> Result<void> { return look_into_shard(tier, directory, manifest.files[numbers[i]]); });
}

Result<ReadManifest> verify_checkpoint(Tier& tier, const std::string& directory, const CheckpointId& id, const std::string& root,
                                       unsigned at_once) {
  ELRUN_TRY_ASSIGN(ReadManifest read, verify_manifest(tier, directory, id, root));
  std::vector<std::uint32_t> all(read.manifest.files.size());
  std::iota(all.begin(), all.end(), 0u);
  ELRUN_TRY(verify_shards(tier, directory, read.manifest, all, at_once));
  return read;
}

}  // namespace elrun::inline v0
