#include "lib/comm/tcp/frame.hpp"

#include <bit>

#include <fmt/format.h>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint32_t frame_magic = 0x464d4c45;  // "ELMF"
constexpr std::size_t checked_from = 8;
constexpr std::uint32_t unchecked = 0x8000'0000;  // in the length
static_assert(frame_payload_max.value() < unchecked);

}  // namespace

std::uint64_t lineage_word(const Lineage& lineage) { return lineage.bits[0] ^ std::rotl(lineage.bits[1], 29); }

FrameHeaderBytes encode(const FrameHeader& header) {
  ByteWriter checked;
  checked.put(header.generation);
  checked.put(header.lineage);
  checked.put(header.call);
  checked.put(header.total);
  checked.put(header.length | (header.checked ? 0 : unchecked));
  checked.put(header.checksum);
  ByteWriter all;
  all.put(frame_magic);
  all.put(crc32c(checked.bytes()));
  all.put_raw(checked.bytes());
  FrameHeaderBytes bytes{};
  ELRUN_ASSERT(all.bytes().size() == bytes.size());
  std::ranges::copy(all.bytes(), bytes.begin());
  return bytes;
}

Result<FrameHeader> decode_frame_header(ByteSpan bytes, const Generation& generation) {
  const auto broken = [](std::string what) { return Failure{Code::protocol, Remedy::abort_group, std::move(what)}; };
  ByteReader in{bytes};
  const bool known = in.get<std::uint32_t>() == frame_magic;
  const bool intact = in.get<std::uint32_t>() == crc32c(bytes.subspan(std::min(bytes.size(), checked_from)));
  FrameHeader header;
  header.generation = in.get<std::uint64_t>();
  header.lineage = in.get<std::uint64_t>();
  header.call = in.get<std::uint64_t>();
  header.total = in.get<std::uint64_t>();
  const auto length = in.get<std::uint32_t>();
  header.length = length & ~unchecked;
  header.checked = (length & unchecked) == 0;
  header.checksum = in.get<std::uint32_t>();
  if (!in.finish("frame").ok() || !known) return broken("bytes that are not a frame");
  if (!intact) return broken("a frame whose header does not match its checksum");
  if (header.length == 0 || header.length > frame_payload_max.value() || header.length > header.total || header.total > call_payload_max) {
    return broken(fmt::format("a frame of {} bytes in a payload of {}; 1 to {} are possible", header.length, header.total,
                              frame_payload_max.value()));
  }
  if (!header.checked && header.checksum != 0) return broken("a frame with a checksum that it does not have");
  if (header.generation != generation.number || header.lineage != lineage_word(generation.lineage)) {
    return Failure{Code::refused, Remedy::abort_group,
                   fmt::format("a frame of generation {}, which is not {}", header.generation, to_string(generation))};
  }
  return header;
}

}  // namespace elrun::inline v0
