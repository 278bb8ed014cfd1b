#include "checkpoint/commit/shard_checks.hpp"

#include <algorithm>

namespace elrun::inline v0 {
namespace {

constexpr std::size_t finding_text_max = 1024;

}  // namespace

ByteVector encode(const ShardQuestion& check) {
  ByteWriter out;
  out.put_text(to_string(check.id));
  out.put(check.manifest_crc);
  return out.take();
}

Result<ShardQuestion> decode_shard_question(ByteSpan bytes) {
  ByteReader in{bytes};
  const auto id = parse_checkpoint_id(in.get_text(64));
  if (!id) in.mark_broken();
  const ShardQuestion check{id.value_or(CheckpointId{}), in.get<std::uint32_t>()};
  ELRUN_TRY(in.finish("the leader's question about a checkpoint"));
  return check;
}

ByteVector encode(const ShardFindings& findings) {
  ByteWriter out;
  out.put(findings.rank);
  out.put(std::uint8_t{findings.is_blind});
  out.put(static_cast<std::uint32_t>(findings.bad.size()));
  for (const std::uint32_t file : findings.bad) out.put(file);
  out.put_text(std::string_view{findings.why}.substr(0, finding_text_max));
  return out.take();
}

Result<ShardFindings> decode_shard_findings(ByteSpan bytes) {
  ByteReader in{bytes};
  ShardFindings findings{.rank = in.get<std::uint32_t>()};
  const auto blind = in.get<std::uint8_t>();
  if (blind > 1) in.mark_broken();
  findings.is_blind = blind == 1;
  const auto count = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && !in.broken(); ++i) {
    findings.bad.push_back(in.get<std::uint32_t>());
    if (i > 0 && findings.bad[i - 1] >= findings.bad[i]) in.mark_broken();
  }
  findings.why = in.get_text(finding_text_max);
  ELRUN_TRY(in.finish("what a rank found of a checkpoint"));
  return findings;
}

std::vector<std::uint32_t> share_of_checks(std::uint32_t files, std::uint32_t rank, std::uint32_t world) {
  std::vector<std::uint32_t> share;
  for (std::uint64_t file = rank; file < files; file += world) share.push_back(static_cast<std::uint32_t>(file));
  return share;
}

}  // namespace elrun::inline v0
