#pragma once
/// \file Shell: how records are found again, and what of a checkpoint is checked. `directory` is a checkpoint's, below the root of the tier.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/commit/fence.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/tiers/tier.hpp"

namespace elrun::inline v0 {

/// The directories under ckpt/ that bear a checkpoint's name. None when ckpt/ is not there. One that cannot be listed, twice, is
/// `Found::unreadable` and stops nobody.
Result<std::vector<Found>> find_checkpoints(Tier& tier);
/// Numbers claimed or published under gens/, ascending. None when gens/ is not there.
Result<std::vector<FenceNumber>> find_fences(Tier& tier);

/// The numbers of published fences among them: those with a .json, readable or not.
Result<std::vector<FenceNumber>> find_published_fences(Tier& tier);

/// What was acknowledged, by the names under gens/, ascending. None when gens/ is not there.
Result<std::vector<CheckpointId>> find_acknowledged(Tier& tier);

/// What failed so is read again, for a network file system may have had a bad moment.
[[nodiscard]] bool may_be_a_moment(Code why);

/// The whole file, as Tier::get_all. One that cannot be read is read again (`may_be_a_moment`). The second time `io` is `corrupt`: unreadable is as good as damaged.
Result<ByteVector> read_record(Tier& tier, const std::string& name, Bytes max);

/// Reads and decodes; `not_found` stays `not_found`.
Result<CommitRecord> read_commit(Tier& tier, const std::string& directory);
struct ReadManifest {
  Manifest manifest;
  std::uint32_t crc = 0;
};
Result<ReadManifest> read_manifest(Tier& tier, const std::string& directory);

/// What is wrong with a record that says that it is of `named` of the root `named_root`, in a checkpoint that is `id` of `root` (empty: of any); to be put behind the record's name.
std::string in_wrong_place(const CheckpointId& named, const std::string& named_root, const CheckpointId& id, const std::string& root);

/// The chain from COMMIT to the manifest. Fails with `corrupt` or `not_found` for damage, naming the file; with other codes when the storage does
/// not answer.
Result<ReadManifest> verify_manifest(Tier& tier, const std::string& directory, const CheckpointId& id, const std::string& root);
/// The first failure among these shards: their lengths, headers and block tables. Not the blocks: a load checks those it uses. `at_once`: from so many threads.
Result<void> verify_shards(Tier& tier, const std::string& directory, const Manifest& manifest, std::span<const std::uint32_t> numbers,
                           unsigned at_once = 1);
/// Both, of all shards.
Result<ReadManifest> verify_checkpoint(Tier& tier, const std::string& directory, const CheckpointId& id, const std::string& root,
                                       unsigned at_once = 1);

}  // namespace elrun::inline v0
