#pragma once
/// \file Shell: how records get onto the storage once, and how they are found again.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/commit/fence.hpp"
#include "checkpoint/format/records.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// Makes `text` appear under `directory / name`, complete or not at all, and never over another file: written and
/// synced beside it, linked, directory synced. A name that already holds the same text is success (a network file
/// system may report the failure of a link that it made). `unique` tells two writers' preparations apart.
Result<void> publish_once(Files& files, const Path& directory, const std::string& name, const std::string& unique, const std::string& text);

/// The directories under ckpt/ that bear a checkpoint's name. None when ckpt/ is not there. One that cannot be listed, twice, is
/// `Found::unreadable` and stops nobody.
Result<std::vector<Found>> find_checkpoints(Files& files, const Path& root);
/// Numbers claimed or published under gens/, ascending. None when gens/ is not there.
Result<std::vector<FenceNumber>> find_fences(Files& files, const Path& root);

/// The numbers of published fences among them: those with a .json, readable or not.
Result<std::vector<FenceNumber>> find_published_fences(Files& files, const Path& root);

/// What was acknowledged, by the names under gens/, ascending. None when gens/ is not there.
Result<std::vector<CheckpointId>> find_acknowledged(Files& files, const Path& root);

/// The whole file, as Files::read_all. One that cannot be read is read again, for a network file system may have had a bad moment; the second
/// time it is `corrupt`: unreadable is as good as damaged.
Result<ByteVector> read_record(Files& files, const Path& path, Bytes max);

/// Reads and decodes; `not_found` stays `not_found`.
Result<CommitRecord> read_commit(Files& files, const Path& directory);
struct ReadManifest {
  Manifest manifest;
  std::uint32_t crc = 0;
};
Result<ReadManifest> read_manifest(Files& files, const Path& directory);

/// The chain from COMMIT to the manifest. Fails with `corrupt` or `not_found` for damage, naming the file; with other codes when the storage does
/// not answer.
Result<ReadManifest> verify_manifest(Files& files, const Path& directory, const CheckpointId& id, const std::string& root);
/// The first failure among these shards: their lengths, headers and block tables. Not the blocks: a load checks those it uses. `at_once`: from so many threads.
Result<void> verify_shards(Files& files, const Path& directory, const Manifest& manifest, std::span<const std::uint32_t> numbers,
                           unsigned at_once = 1);
/// Both, of all shards.
Result<ReadManifest> verify_checkpoint(Files& files, const Path& directory, const CheckpointId& id, const std::string& root,
                                       unsigned at_once = 1);

/// Removes a directory of plain files, or a symbolic link that is there instead: the link, not what it leads to. What is already gone is no failure, nor is one file that will not go before
/// the others have. `at_once`: from so many threads.
Result<void> remove_tree(Files& files, const Path& directory, unsigned at_once = 1);

}  // namespace elrun::inline v0
