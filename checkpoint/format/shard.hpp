#pragma once
/// \file Core: one shard file, a valid safetensors file that verifies itself.
///
///   u64 header length | header JSON, padded with spaces | data | block table
///
/// Data starts at a multiple of 4096: the kinds of state one after the other, each aligned by a `__elrun_pad_<n>`
/// tensor, then host state. State has the names of the model's tensors (boxes.hpp). The last tensor, `__elrun_crc32c`, holds a CRC-32C per block of the file
/// before it, and the header's. Nothing of it depends on elrun to be read.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

constexpr std::uint64_t shard_header_bytes_max = 100'000'000;  // safetensors' own bound

struct TensorEntry {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< Bytes, counted from the start of the data.
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct ShardHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  ///< In the order of their data, which has no holes.
  friend bool operator==(const ShardHeader&, const ShardHeader&) = default;
};

/// Length of the header with its 8 bytes of length, from those 8 bytes.
[[nodiscard]] Result<std::uint64_t> shard_header_length(std::span<const std::byte, 8> start, std::uint64_t file_bytes,
                                                        std::string_view what);
/// `header` begins with the 8 bytes of the length.
[[nodiscard]] Result<ShardHeader> decode_shard_header(ByteSpan header, std::uint64_t file_bytes, std::string_view what);
/// Padded so that its length is a multiple of 4096.
[[nodiscard]] ByteVector encode_shard_header(const ShardHeader& header);

/// Bytes of somebody's memory, or as many zeros.
struct Segment {
  ByteSpan bytes{};
  std::uint64_t zeros = 0;
};

/// A shard before it is written: all but the checksums of its data.
struct ShardLayout {
  ByteVector header;
  std::vector<Segment> data;  ///< In file order, from the header's end to the table.
  PartRecord part;            ///< Checksums not yet set, except the header's.
};

/// What `rank` writes of `fragments`: its slice of the replicated ones, all of the others. `bytes_per_block` have a checksum each. Fails with all problems.
[[nodiscard]] Result<ShardLayout> lay_out_shard(const ModelTable& model, CheckpointId id, const std::string& root, const Author& author,
                                                std::uint32_t rank, std::uint32_t world, std::span<const Fragment> fragments,
                                                std::span<const Aux> aux, std::uint64_t bytes_per_block = block_bytes);

/// The checksums of a file's blocks.
class BlockTable {
 public:
  /// `crcs`: by block, of the first `bytes` bytes.
  BlockTable(std::uint64_t bytes_per_block, std::vector<std::uint32_t> crcs, std::uint64_t bytes)
      : block_bytes_{bytes_per_block}, crcs_{std::move(crcs)}, bytes_{bytes} {}
  /// The table's bytes: a little-endian u32 per block, then the header's checksum.
  [[nodiscard]] ByteVector finish(std::uint32_t header_crc) const;
  /// Of all bytes.
  [[nodiscard]] std::uint32_t whole() const;

 private:
  std::uint64_t block_bytes_;
  std::vector<std::uint32_t> crcs_;
  std::uint64_t bytes_ = 0;
};

}  // namespace elrun::inline v0
