/// \file Records from a disk that anybody may have written: decoding never does harm, and what it accepts is sound.
/// The first byte says which record; checksums are put right, so that the fuzzer gets behind them.

#include "checkpoint/commit/messages.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/plan.hpp"
#include "checkpoint/format/records.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/crc32c.hpp"
#include "tests/support/format_one.hpp"
#include "tests/support/large_model.hpp"

using namespace elrun;

namespace {

/// What is accepted is written as it was read.
template <class Decode>
void judge(ByteSpan text, Decode decode) {
  const auto record = decode(text, "input");
  if (!record.ok()) return;
  const std::string again = encode(*record);
  const auto reread = decode(as_bytes(again), "own output");
  ELRUN_ASSERT(reread.ok() && *reread == *record);
}

void judge_part(const std::string& text) {
  auto part = decode_part(as_bytes(text), "input");
  if (!part.ok()) return;
  part->format = checkpoint_format;
  const auto reread = decode_part(as_bytes(encode(*part)), "own output");
  ELRUN_ASSERT(reread.ok() && *reread == *part);
}

std::string resealed(ByteSpan body) {
  const auto json = parse_json(body, "input");
  return json.ok() ? seal(*json) : std::string{as_text(body)};
}

/// Written again it is the same, in the newest format. Every range of it can be planned, or is refused, and stays in its file.
void judge_manifest(Manifest manifest) {
  manifest.format = checkpoint_format;
  const auto reread = decode_manifest(as_bytes(encode(manifest)), "own output");
  ELRUN_ASSERT(reread.ok() && *reread == manifest);
  for (std::uint64_t unit = 0; unit < manifest.model.units.size(); ++unit)
    for (const KindInfo& kind : manifest.model.kinds) {
      const std::uint64_t elements = manifest.model.units[unit].elements;
      if (elements == 0 || elements > 1 << 16) continue;
      ByteVector memory(elements * size_of(kind.dtype));
      const std::vector<Fragment> all{{kind.name, unit, 0, elements, memory}};
      const auto reads = plan_reads(manifest, all);
      if (!reads.ok()) {  // its data would end before
        ELRUN_ASSERT(reads.failure().code == Code::corrupt);
        continue;
      }
      std::uint64_t bytes = 0;
      for (const ReadExtent& read : *reads) {
        bytes += read.bytes;
        ELRUN_ASSERT(read.offset + read.bytes <= manifest.files.at(read.file).table_offset && read.at + read.bytes <= memory.size());
      }
      ELRUN_ASSERT(bytes == memory.size());
    }
}

const Author author{"run", Generation{3, {{1, 2}}}, 1'700'000'000'000'000'000};
const std::string root(32, 'a');
const ModelTable model{.units = {{"embed", 3000, {{"weight", DType::f32, {50, 60}, 0}}}, {"head", 7, {}}},
                       .kinds = {{"param", DType::f32}, {"exp_avg", DType::bf16}}};

Manifest example_manifest() {
  std::vector<PartRecord> parts(1);
  PartRecord& part = parts[0];
  part.id = {10, 3, 1};
  part.root = root;
  part.file = {shard_name(0, 1), 4096 + 24576 + 8, 4096, 4096 + 24576, 1, 2, 3};
  part.aux = {{"schedule", 0, 24576, 8}};
  part.fragments = {
      {0, 0, 0, 0, 2000, 4096}, {0, 0, 0, 2000, 3000, 12096}, {0, 1, 0, 0, 7, 16096}, {1, 0, 0, 0, 3000, 16384}, {1, 1, 0, 0, 7, 22384}};
  return merge({.format = checkpoint_format,
                .id = part.id,
                .root = root,
                .author = author,
                .parent = CheckpointId{5, 2, 1},
                .world = 1,
                .plan = {"abc", "seed: 7"},
                .model = model,
                .files = {},
                .layout = {},
                .aux = {}},
               parts)
      .value();
}

std::string tagged(char tag, std::string_view text) {
  std::string all(1, tag);
  return all.append(text);
}

std::string body_of(const std::string& sealed) { return canonical(unseal(as_bytes(sealed), "example").value()); }

}  // namespace

std::vector<std::string> fuzz_examples() {
  const Manifest manifest = example_manifest();
  FenceRecord fence;
  fence.number = 3;
  fence.author = author;
  fence.inherits = {{5, 2, 1}, {10, 2, 1}};
  fence.resumed_from = CheckpointId{10, 2, 1};
  fence.gives_up = {{{15, 2, 1}, root}, {{20, 2, 1}}};
  const std::string commit = encode(CommitRecord{{10, 3, 1}, root, author, 1234, 99, std::string(64, 'b'), 1, 28680});
  PartVote vote{{10, 3, 1}, 5, 1234, 99, Failure{Code::no_space, Remedy::fix_config, "full"}};
  return {tagged('R', body_of(encode(RunRecord{root, author, {"abc", "seed: 7"}, model}))),
          tagged('C', body_of(encode(ClaimRecord{3, author}))),
          tagged('F', body_of(encode(fence))),
          tagged('A', body_of(encode(Acknowledgement{{10, 3, 1}, root, author, "/ckpts", "abc"}))),
          tagged('P', body_of(encode(PartRecord{manifest.id, root, 0, 1, manifest.files[0], fragments_of(manifest), manifest.aux}))),
          tagged('M', encode(manifest)),
          tagged('M', test::manifest_in_format_one(manifest)),
          tagged('M', encode(test::even_manifest(model, 5))),
          tagged('K', commit.substr(0, commit.size() - 9)),
          tagged('S', encode(ClaimRecord{3, author})),
          tagged('V', as_text(encode(vote)))};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 1 << 16) return 0;
  const ByteSpan rest = std::as_bytes(std::span{data + 1, size - 1});
  switch (data[0]) {
    case 'R': judge(as_bytes(resealed(rest)), decode_run); break;
    case 'C': judge(as_bytes(resealed(rest)), decode_claim); break;
    case 'F': judge(as_bytes(resealed(rest)), decode_fence); break;
    case 'A': judge(as_bytes(resealed(rest)), decode_acknowledgement); break;
    case 'P': judge_part(resealed(rest)); break;
    case 'S': judge(rest, decode_claim); break;
    case 'M':
      if (auto manifest = decode_manifest(rest, "input"); manifest.ok()) judge_manifest(*std::move(manifest));
      break;
    case 'K': {
      const std::string line{as_text(rest)};
      judge(as_bytes(line + hex32(crc32c(rest)) + "\n"), decode_commit);
      break;
    }
    default:
      if (const auto vote = decode_part_vote(rest); vote.ok()) ELRUN_ASSERT(decode_part_vote(encode(*vote)).ok());
  }
  return 0;
}
