#include "lib/data/idx.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace elrun::inline v0 {
namespace {

constexpr unsigned unsigned_bytes = 0x08;

Failure corrupt(std::string_view name, std::string_view why) {
  return {Code::corrupt, Remedy::fix_config, fmt::format("'{}' {}", name, why)};
}

}  // namespace

Result<IdxHeader> parse_idx_header(ByteSpan head, std::string_view name) {
  const auto byte = [&](std::size_t i) { return std::to_integer<unsigned>(head[i]); };
  if (head.size() < 4 || byte(0) != 0 || byte(1) != 0)
    return corrupt(name,
                   "is no idx file: it does not begin with two zero bytes, a type and a number of extents; name one, "
                   "plain or .gz");
  if (byte(2) != unsigned_bytes)
    return corrupt(name, fmt::format("has elements of idx type 0x{:02x}; only unsigned bytes, 0x08, are read: write it so", byte(2)));
  const std::size_t extents = byte(3);
  if (extents == 0 || extents > idx_extents_max)
    return corrupt(name, fmt::format("has {} extents, and 1 to {} are read: get the file again, or write it so", extents, idx_extents_max));
  IdxHeader header{.size = 4 + 4 * extents, .content = 1};
  if (head.size() < header.size)
    return corrupt(name, fmt::format("ends within its header, after {} bytes; get the file again", head.size()));
  for (std::size_t e = 0; e < extents; ++e) {
    std::uint64_t extent = 0;
    for (std::size_t b = 0; b < 4; ++b) extent = extent << 8 | byte(4 + 4 * e + b);
    if (extent == 0) return corrupt(name, fmt::format("has nothing in it: extent {} is 0; name another file", e));
    if (extent > idx_bytes_max / header.content)
      return corrupt(name, fmt::format("speaks of more than {} bytes, the limit; get the file again", idx_bytes_max));
    header.content *= extent;
    header.shape.push_back(extent);
  }
  return header;
}

Result<IdxHeader> parse_idx(ByteSpan file, std::string_view name) {
  ELRUN_TRY_ASSIGN(IdxHeader header, parse_idx_header(file.first(std::min(file.size(), idx_header_max)), name));
  if (file.size() - header.size != header.content)
    return corrupt(name, fmt::format("has {} bytes after its header, which speaks of {} ({}); get the file again",
                                     file.size() - header.size, header.content, fmt::join(header.shape, " x ")));
  return header;
}

}  // namespace elrun::inline v0
