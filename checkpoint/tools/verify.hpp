#pragma once
/// \file Shell: reads all bytes of a checkpoint and finds all that is damaged, with several readers at once.

#include <cstdint>
#include <functional>
#include <string>

#include <elrun/result.hpp>

#include "checkpoint/format/records.hpp"
#include "checkpoint/tools/verified.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// Says something of the checkpoint, not of the way to it or of this process.
[[nodiscard]] bool is_damage(Code why);

struct VerifyOptions {
  unsigned readers = 4;
  std::uint64_t portion_blocks = 256;  ///< Of a file, for one reader at a time.
  std::size_t damage_max = 10'000;     ///< That are listed.
  bool was_committed = false;          ///< When it was looked for: then it fails with `not_found` where the job has removed it meanwhile.
  /// Called by any reader, one at a time, with the bytes that were read so far, and those that there are.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress{};
};

/// Checks COMMIT, the manifest, and of every shard its length, header, block table and every block. It does not end at the first damage: where a
/// record cannot be read, what vouched for the rest is replaced by the next best, down to what each rank wrote of its own shard.
/// `root`: the identity that the checkpoint should have; empty: any. The first failure that is no damage, such as a storage that hangs or memory that is refused, ends it: `cut_off` has it beside what was found
/// before. The call itself fails where the directory is not there.
[[nodiscard]] Result<Verified> verify_all(Files& files, const Path& directory, const CheckpointId& id, const std::string& root,
                                          const VerifyOptions& options);

}  // namespace elrun::inline v0
