#pragma once
/// \file Shell: a shard to the storage, its checksums on the way. The one path for saves that block and for those of `elrun ckptd`.

#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/format/shard.hpp"
#include "checkpoint/tiers/tier.hpp"

namespace elrun::inline v0 {

struct ShardWriting {
  /// Threads that write, so that one sums while another waits for the storage; 0: the calling one does, in the order of the file. More than 1 where the tier is thread-safe.
  unsigned threads = 0;
  /// Called before so many bytes are written, on the thread that writes them; it may wait. A failure ends the writing.
  std::function<Result<void>(std::uint64_t bytes)> pace{};
};

/// Writes the shard that `layout` describes, as `Tier::create` keeps it, and returns its part with all checksums. The header is written
/// last: a file that was torn before begins with zeros, and no reader takes it for a shard. After a failure the file
/// is removed, and never tried again under this name. A header that no reader would take fails before anything is written.
///
/// Bytes whose memory is aligned as their place in the file is are written from where they are; others are copied once, and never where that helps nothing.
Result<PartRecord> write_shard(Tier& tier, const std::string& directory, const ShardLayout& layout, const ShardWriting& how = {});

}  // namespace elrun::inline v0
