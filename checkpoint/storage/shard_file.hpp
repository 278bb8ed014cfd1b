#pragma once
/// \file Shell: shards from the storage, checked on the way. shard_writer.hpp has the way there.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/plan.hpp"
#include "checkpoint/format/shard.hpp"
#include "checkpoint/tiers/tier.hpp"

namespace elrun::inline v0 {

/// Looks whether a shard has its record's length, header and block table, by their checksums. What the header says was checked by its writer: reading it again costs milliseconds of a
/// core in a large model, and one process may look into the shards of thousands.
Result<void> look_into_shard(Tier& tier, const std::string& directory, const FileRecord& record);

/// A shard whose length, header and block table have been checked.
class ShardReader {
 public:
  static Result<ShardReader> open(Tier& tier, const std::string& directory, const FileRecord& record);
  /// Fills the fragments from `reads`, all of this file and ascending in offset. Whole blocks are read and checked;
  /// none of them is read twice.
  Result<void> read(std::span<const ReadExtent> reads, std::span<const std::span<std::byte>> targets);
  /// Fills `out` with whole blocks from `offset` on, to the end of a block or of the data, and checks them. From several threads at once.
  Result<void> read_blocks(std::uint64_t offset, std::span<std::byte> out) const;
  /// Checks every block.
  Result<void> check();
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  ShardReader(std::unique_ptr<ReadableFile> file, std::string where, FileRecord record)
      : file_{std::move(file)}, where_{std::move(where)}, record_{std::move(record)} {}
  Result<void> load_window(std::uint64_t from, std::uint64_t until);
  Result<void> check_blocks(std::uint64_t offset, ByteSpan bytes) const;

  std::unique_ptr<ReadableFile> file_;
  std::string where_;
  FileRecord record_;
  std::vector<std::uint32_t> table_;
  ByteVector window_;               // checked blocks
  std::uint64_t window_begin_ = 0;  // in the file
  std::uint64_t bytes_read_ = 0;
};

}  // namespace elrun::inline v0
