// Any bytes from a peer are a header within its bounds, or refused; so are those of a handshake.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/assert.hpp"
#include "lib/comm/connect/handshake.hpp"
#include "lib/comm/tcp/frame.hpp"

using namespace elrun;

namespace {
const Generation generation{7, {{11, 22}}};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan bytes = std::as_bytes(std::span{data, size});
  const auto check = [](ByteSpan header) {
    const auto frame = decode_frame_header(header, generation);
    if (!frame.ok()) return;
    ELRUN_ASSERT(frame->length > 0 && frame->length <= frame_payload_max.value() && frame->length <= frame->total);
    ELRUN_ASSERT(std::ranges::equal(encode(*frame), header));
  };
  check(bytes);
  if (bytes.size() >= frame_header_size - 8) {  // past the checksum, which mutation never gets right
    ByteWriter repaired;
    repaired.put_raw(ByteSpan{encode(FrameHeader{})}.first(4));
    repaired.put(crc32c(bytes.first(frame_header_size - 8)));
    repaired.put_raw(bytes.first(frame_header_size - 8));
    check(repaired.bytes());
  }
  (void)decode_introduction(bytes);
  return 0;
}

std::vector<std::string> fuzz_examples() {
  const FrameHeader header{
      .generation = 7, .lineage = lineage_word(generation.lineage), .call = 1, .total = 100, .length = 50, .checksum = 1};
  const FrameHeaderBytes frame = encode(header);
  const auto introduction = encode(Introduction{generation, WorldSize{2}, Rank{1}, Rank{0}, {}});
  return {std::string{as_text(frame)}, std::string{as_text(ByteSpan{frame}.subspan(8))}, std::string{as_text(introduction)}};
}
