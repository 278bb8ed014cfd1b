#pragma once
/// \file CRC-32C (Castagnoli, RFC 3720), the checksum of frames and files: in hardware where there is SSE4.2.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace elrun::inline v0 {

/// Goes on from `crc`: crc32c(b, crc32c(a)) is the checksum of a followed by b.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc = 0) noexcept;

/// The checksum of a followed by b, from their checksums and the length of b in bytes.
[[nodiscard]] std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, std::uint64_t length_b) noexcept;

/// The same for many b of one length: made once, for it takes as long as the checksum of 100 KiB.
class Crc32cShift {
 public:
  explicit Crc32cShift(std::uint64_t length_b) noexcept;
  [[nodiscard]] std::uint32_t combine(std::uint32_t a, std::uint32_t b) const noexcept;

 private:
  std::array<std::uint32_t, 32> shift_{};
};

}  // namespace elrun::inline v0
