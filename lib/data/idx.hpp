#pragma once
/// \file The idx format, in values: two zero bytes, the type, the number of extents, the extents in 32 bits big-endian,
/// then the elements, the last extent running fastest.

#include <cstddef>
#include <string_view>

#include <elrun/tensor.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

constexpr std::size_t idx_extents_max = 8;
constexpr std::size_t idx_header_max = 4 + 4 * idx_extents_max;
constexpr std::uint64_t idx_bytes_max = std::uint64_t{1} << 40;

struct IdxHeader {
  Shape shape;
  std::size_t size = 0;       ///< Of the header itself.
  std::uint64_t content = 0;  ///< Bytes that follow it.
};

/// From the first bytes of a file, at least `idx_header_max` of them where there are as many.
[[nodiscard]] Result<IdxHeader> parse_idx_header(ByteSpan head, std::string_view name);
/// Of a whole plain file: that it has the bytes which its header speaks of, and no other.
[[nodiscard]] Result<IdxHeader> parse_idx(ByteSpan file, std::string_view name);

}  // namespace elrun::inline v0
