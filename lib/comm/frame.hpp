#pragma once
/// \file The wire frame between two ranks, and the cursor that cuts a call's pieces of memory into frames. Pure.
///
/// A call's payload for one peer travels as frames of at most `frame_payload_max` bytes, one after the other. Frame,
/// little-endian: u32 magic | u32 CRC-32C of the rest of the header | u64 generation's number | u64 lineage, mixed |
/// u64 number of the call between the two | u64 length of the call's whole payload | u32 length of this frame's, whose
/// highest bit is set when its payload carries no checksum | u32 CRC-32C of this frame's payload, or 0. Then the payload.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"
#include "lib/base/crc32c.hpp"

namespace elrun::inline v0 {

constexpr std::size_t frame_header_size = 48;
/// Small enough that the bytes are still in the cache when they go to the socket after their checksum was taken; large
/// enough that a frame's own cost does not count.
constexpr Bytes frame_payload_max = 512_KiB;
constexpr std::uint64_t call_payload_max = std::uint64_t{1} << 48;
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

/// A place in a list of pieces. `Piece` is a span of bytes, constant or not. Holds views; allocates nothing.
template <class Piece>
class Cursor {
 public:
  Cursor() = default;
  explicit Cursor(std::span<const Piece> pieces) : pieces_{pieces} {
    for (const Piece& piece : pieces) left_ += piece.size();
  }
  [[nodiscard]] std::uint64_t left() const { return left_; }
  [[nodiscard]] bool done() const { return left_ == 0; }

  /// The next pieces, `bytes_max` bytes and as many pieces as `out` holds at most; moves on. Returns those in use.
  std::span<Piece> take(std::uint64_t bytes_max, std::span<Piece> out) {
    std::size_t used = 0;
    while (used < out.size() && bytes_max > 0 && left_ > 0) {
      const Piece rest = pieces_.front().subspan(offset_);
      const Piece head = rest.first(static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), bytes_max)));
      if (head.size() == rest.size()) {
        pieces_ = pieces_.subspan(1);
        offset_ = 0;
      } else {
        offset_ += head.size();
      }
      if (head.empty()) continue;  // an empty piece takes no place
      out[used++] = head;
      bytes_max -= head.size();
      left_ -= head.size();
    }
    return out.first(used);
  }

 private:
  std::span<const Piece> pieces_;
  std::size_t offset_ = 0;  // in the first of them
  std::uint64_t left_ = 0;
};

/// The checksum of pieces one after the other.
template <class Piece>
[[nodiscard]] std::uint32_t checksum_of(std::span<Piece> pieces, std::uint32_t before = 0) {
  for (const Piece& piece : pieces) before = crc32c(piece, before);
  return before;
}

}  // namespace elrun::inline v0
