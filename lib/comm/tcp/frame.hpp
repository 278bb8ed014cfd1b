#pragma once
/// \file The wire frame between two ranks. Pure.
///
/// A call's payload for one peer travels as frames of at most `frame_payload_max` bytes, one after the other. Frame,
/// little-endian: u32 magic | u32 CRC-32C of the rest of the header | u64 generation's number | u64 lineage, mixed |
/// u64 number of the call between the two, with its kind and label above (label.hpp) | u64 length of the call's whole
/// payload | u32 length of this frame's, whose highest bit is set when its payload carries no checksum | u32 CRC-32C of
/// this frame's payload, or 0. Then the payload.

#include <array>
#include <cstdint>
#include <span>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/comm/cursor.hpp"

namespace elrun::inline v0 {

constexpr std::size_t frame_header_size = 48;
/// Small enough that the bytes are still in the cache when they go to the socket after their checksum was taken; large
/// enough that a frame's own cost does not count.
constexpr Bytes frame_payload_max = 512_KiB;
constexpr std::size_t pieces_max = 64;  ///< Of memory in one system call.

struct FrameHeader {
  std::uint64_t generation = 0;
  std::uint64_t lineage = 0;
  std::uint64_t call = 0;
  std::uint64_t total = 0;
  std::uint32_t length = 0;
  std::uint32_t checksum = 0;
  bool checked = true;  ///< Its payload has a checksum. Bytes that never leave their host need none.
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};
using FrameHeaderBytes = std::array<std::byte, frame_header_size>;

[[nodiscard]] std::uint64_t lineage_word(const Lineage& lineage);
[[nodiscard]] FrameHeaderBytes encode(const FrameHeader& header);
/// Everything checked: `protocol` when no correct peer sends this, `refused` when it belongs to another generation.
[[nodiscard]] Result<FrameHeader> decode_frame_header(ByteSpan bytes, const Generation& generation);

/// The checksum of pieces one after the other.
template <class Piece>
[[nodiscard]] std::uint32_t checksum_of(std::span<Piece> pieces, std::uint32_t before = 0) {
  for (const Piece& piece : pieces) before = crc32c(piece, before);
  return before;
}

}  // namespace elrun::inline v0
