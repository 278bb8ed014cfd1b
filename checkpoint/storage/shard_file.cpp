#include "checkpoint/storage/shard_file.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/crc32c.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t window_bytes_max = 4u << 20;  // a multiple of every size of blocks
static_assert(window_bytes_max % block_bytes_max == 0);

}  // namespace

namespace {

struct OpenedShard {
  std::unique_ptr<ReadableFile> file;
  ByteVector header, table;  // as the record has them
};

Result<OpenedShard> open_shard(Tier& tier, const std::string& name, const FileRecord& record) {
  ELRUN_TRY_ASSIGN(auto file, tier.open(name));
  ELRUN_TRY_ASSIGN(const std::uint64_t size, file->size());
  if (size != record.bytes) return corrupt(fmt::format("{} has {} bytes, the manifest says {}", tier.where(name), size, record.bytes));
  ByteVector header(record.header_bytes);  // bounded by the file's size, which was just seen
  ELRUN_TRY(file->read_at(0, header));
  if (const std::uint32_t crc = crc32c(header); crc != record.header_crc)
    return corrupt(fmt::format("{}: the header (bytes 0 to {}) has CRC-32C {:08x}, the manifest says {:08x}", tier.where(name),
                               record.header_bytes, crc, record.header_crc));
  ByteVector table(record.bytes - record.table_offset);
  ELRUN_TRY(file->read_at(record.table_offset, table));
  if (const std::uint32_t crc = crc32c(table); crc != record.table_crc)
    return corrupt(fmt::format("{}: the block table (bytes {} to {}) has CRC-32C {:08x}, the manifest says {:08x}", tier.where(name),
                               record.table_offset, record.bytes, crc, record.table_crc));
  return OpenedShard{std::move(file), std::move(header), std::move(table)};
}

}  // namespace

Result<void> look_into_shard(Tier& tier, const std::string& directory, const FileRecord& record) {
  ELRUN_TRY(open_shard(tier, name_in(directory, record.name), record));
  return {};
}

Result<ShardReader> ShardReader::open(Tier& tier, const std::string& directory, const FileRecord& record) {
  const std::string name = name_in(directory, record.name);
  ELRUN_TRY_ASSIGN(OpenedShard shard, open_shard(tier, name, record));
  std::string where = tier.where(name);
  ELRUN_TRY(decode_shard_header(shard.header, record.bytes, where));
  ShardReader reader{std::move(shard.file), std::move(where), record};
  reader.table_.resize(shard.table.size() / 4);
  std::memcpy(reader.table_.data(), shard.table.data(), reader.table_.size() * 4);
  reader.bytes_read_ = shard.header.size() + shard.table.size();
  return reader;
}

Result<void> ShardReader::check_blocks(std::uint64_t offset, ByteSpan bytes) const {
  for (std::uint64_t at = 0; at < bytes.size(); at += record_.block_bytes) {
    const std::uint64_t block = (offset + at) / record_.block_bytes, begin = block * record_.block_bytes;
    const ByteSpan one = bytes.subspan(at, std::min<std::uint64_t>(record_.block_bytes, bytes.size() - at));
    if (const std::uint32_t crc = crc32c(one); crc != table_[block])
      return corrupt(fmt::format("{}: block {} (bytes {} to {}) has CRC-32C {:08x}, expected {:08x}", where_, block, begin,
                                 begin + one.size(), crc, table_[block]));
  }
  return {};
}

Result<void> ShardReader::read_blocks(std::uint64_t offset, std::span<std::byte> out) const {
  const std::uint64_t end = offset + out.size();
  ELRUN_ASSERT(offset % record_.block_bytes == 0 && end <= record_.table_offset &&
               (end % record_.block_bytes == 0 || end == record_.table_offset));
  if (auto read = file_->read_at(offset, out); !read.ok()) {
    Failure why = std::move(read).failure();
    why.what = fmt::format("bytes {} to {}: {}", offset, end, why.what);
    return why;
  }
  return check_blocks(offset, out);
}

Result<void> ShardReader::load_window(std::uint64_t from, std::uint64_t until) {
  const std::uint64_t block_size = record_.block_bytes;
  window_begin_ = from / block_size * block_size;
  const std::uint64_t whole = (until + block_size - 1) / block_size * block_size;
  const std::uint64_t end = std::min({record_.table_offset, window_begin_ + window_bytes_max, whole});
  window_.resize(end - window_begin_);
  bytes_read_ += window_.size();
  return read_blocks(window_begin_, window_);
}

Result<void> ShardReader::check() {
  for (std::uint64_t at = 0; at < record_.table_offset; at = window_begin_ + window_.size())
    ELRUN_TRY(load_window(at, record_.table_offset));
  return {};
}

Result<void> ShardReader::read(std::span<const ReadExtent> reads, std::span<const std::span<std::byte>> targets) {
  for (const ReadExtent& extent : reads) {
    for (std::uint64_t done = 0; done < extent.bytes;) {
      const std::uint64_t at = extent.offset + done;
      if (at < window_begin_ || at >= window_begin_ + window_.size()) ELRUN_TRY(load_window(at, extent.offset + extent.bytes));
      const std::uint64_t count = std::min(extent.bytes - done, window_begin_ + window_.size() - at);
      std::memcpy(targets[extent.fragment].data() + extent.at + done, window_.data() + (at - window_begin_), count);
      done += count;
    }
  }
  return {};
}

}  // namespace elrun::inline v0
