/// \file Shard headers that anybody may have written: decoding never does harm; what it accepts has no hole and no
/// overlap, and is written as it was read. Input: u64 length, header, and how many bytes of data are said to follow.

#include <cstring>

#include "checkpoint/format/shard.hpp"
#include "lib/base/assert.hpp"

using namespace elrun;

std::vector<std::string> fuzz_examples() {
  ShardHeader header;
  header.metadata = {{"elrun.step", "10"}, {"elrun.crc", "crc32c;1048576"}};
  header.tensors = {{"param/embed@0", DType::f32, {50, 60}, 0, 12000},
                    {"__elrun_pad_1", DType::u8, {288}, 12000, 12288},
                    {"exp_avg/embed@0", DType::bf16, {3000}, 12288, 18288},
                    {"__elrun_crc32c", DType::u8, {8}, 18288, 18296}};
  std::string text{as_text(encode_shard_header(header))};
  text.resize(text.find_last_not_of(' ') + 1);  // short, so that mutations meet something
  const std::uint64_t length = text.size() - 8;
  std::memcpy(text.data(), &length, 8);
  return {text};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 1 << 16) return 0;
  ByteVector bytes(std::as_bytes(std::span{data, size}).begin(), std::as_bytes(std::span{data, size}).end());
  (void)decode_shard_header(bytes, bytes.size(), "as it is");
  if (bytes.size() <= 8) return 0;
  const std::uint64_t length = bytes.size() - 8;
  std::memcpy(bytes.data(), &length, 8);
  for (const std::uint64_t data_bytes : {0u, 8u, 12288u, 18296u}) {
    const auto header = decode_shard_header(bytes, bytes.size() + data_bytes, "input");
    if (!header.ok()) continue;
    std::uint64_t next = 0;
    for (const TensorEntry& t : header->tensors) {
      ELRUN_ASSERT(t.begin == next && t.end >= t.begin);
      next = t.end;
    }
    ELRUN_ASSERT(next == data_bytes);
    const ByteVector again = encode_shard_header(*header);
    const auto reread = decode_shard_header(again, again.size() + data_bytes, "own output");
    ELRUN_ASSERT(reread.ok() && *reread == *header);
  }
  return 0;
}
