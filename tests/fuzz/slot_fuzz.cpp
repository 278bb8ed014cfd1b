/// \file Staging slots and words about them, from anybody of this user: decoding never does harm, and what it accepts lies inside of the slot and is
/// written as it was read. The first byte says which; the checksum of a slot's head is put right, so that the fuzzer gets behind it.

#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/staging/slot_record.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/crc32c.hpp"

using namespace elrun;

namespace {

constexpr std::uint64_t data_bytes = 4096;

SlotRecord example() {
  SlotRecord record{.run_id = "r7",
                    .generation = {3, {{1, 2}}},
                    .rank = 0,
                    .world = 2,
                    .plan = {"abc123", "seed: 7\n"},
                    .model = {{{"embed", 3000, {{"weight", DType::f32, {50, 60}, 0}}}}, {{"param", DType::f32}}},
                    .directory = "/ckpts",
                    .keep = 3,
                    .step = 40,
                    .ownership = {2, {{10, 1, 1}}, {{10, 1, 1}}, {{{5, 1, 1}, std::string(32, 'a')}}},
                    .fragments = {{"param", 0, 10, 20, 64, 40}},
                    .aux = {{"schedule", ByteVector(3, std::byte{7})}}};
  return record;
}

std::string text(char what, ByteSpan bytes) { return what + std::string{as_text(bytes)}; }

}  // namespace

std::vector<std::string> fuzz_examples() {
  const SaveOutcome good{3, 40, "acknowledged", {}}, bad{3, 40, {}, Failure{Code::no_space, Remedy::fix_config, "full"}};
  return {text('r', encode(example())),
          text('h', encode(SlotPrefix{SlotState::sealed, 7, 1000, 8192, 4000})),
          text('o', encode(std::optional{good})),
          text('o', encode(std::optional{bad})),
          text('s', encode(Said{.failure = bad.failure, .again = true})),
          text('p', encode(BrokenPromise{{7, {{8, 9}}}, 5, *bad.failure})),
          text('n', encode(std::vector<NotedSave>{{1, 3, 40, 2}, {1, 4, 50, 3}}))};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || size > 1 << 16) return 0;
  const ByteSpan bytes = std::as_bytes(std::span{data + 1, size - 1});
  (void)parse_slot_word(bytes);
  if (data[0] == 'o') {
    const auto outcome = decode_save_outcome(bytes);
    if (outcome.ok()) ELRUN_ASSERT(decode_save_outcome(encode(*outcome)).ok());
  } else if (data[0] == 's') {
    const auto said = decode_said(bytes);
    if (said.ok()) ELRUN_ASSERT(decode_said(encode(*said)).ok());
  } else if (data[0] == 'p') {
    const auto broken = decode_broken_promise(bytes);
    if (broken.ok()) ELRUN_ASSERT(decode_broken_promise(encode(*broken)).ok());
  } else if (data[0] == 'n') {
    const auto noted = decode_noted_saves(bytes);
    if (noted.ok()) ELRUN_ASSERT(decode_noted_saves(encode(*noted)).value() == *noted);
  } else if (data[0] == 'h') {
    ByteVector page(bytes.begin(), bytes.end());
    page.resize(slot_page);
    const std::uint32_t crc = crc32c(ByteSpan{page}.subspan(12, 28), crc32c(ByteSpan{page}.first(8)));
    for (std::size_t i = 0; i < 4; ++i) page[40 + i] = static_cast<std::byte>(crc >> 8 * i);
    constexpr std::uint64_t file_bytes = 1 << 20;
    const auto head = decode_slot_prefix(page, file_bytes);
    if (!head.ok()) return 0;
    ELRUN_ASSERT(head->data_offset <= file_bytes && head->data_bytes <= file_bytes - head->data_offset);
    ELRUN_ASSERT(slot_page + head->record_bytes <= head->data_offset);
  } else {
    const auto record = decode_slot_record(bytes, data_bytes);
    if (!record.ok()) return 0;
    for (const SlotFragment& f : record->fragments) ELRUN_ASSERT(f.bytes <= data_bytes && f.offset <= data_bytes - f.bytes);
    const auto again = decode_slot_record(encode(*record), data_bytes);
    ELRUN_ASSERT(again.ok() && *again == *record);
  }
  return 0;
}
