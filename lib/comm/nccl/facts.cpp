#include "lib/comm/nccl/facts.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/base/digest.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint8_t format = 4;
constexpr std::size_t problem_max = 4096, name_max = 256;
constexpr std::uint32_t ranks_per_root = 128;

Failure failed(Code code, Remedy remedy, std::size_t rank, std::string what) {
  return {.code = code, .remedy = remedy, .what = std::move(what), .peer = Rank{static_cast<std::uint32_t>(rank)}};
}

}  // namespace

std::vector<std::byte> encode(const NcclFacts& facts) {
  ByteWriter out;
  out.put(format);
  out.put_text(std::string_view{facts.problem}.substr(0, problem_max));
  out.put(static_cast<std::int32_t>(facts.version.code));
  out.put_text(std::string_view{facts.host}.substr(0, name_max));
  out.put_text(std::string_view{facts.device}.substr(0, name_max));
  out.put(static_cast<std::uint8_t>(facts.shares_device));
  out.put(static_cast<std::uint8_t>(facts.has_id));
  if (facts.has_id) out.put_raw(facts.id);
  out.put(facts.process);
  out.put(facts.late_of);
  return out.take();
}

Result<NcclFacts> decode_nccl_facts(std::span<const std::byte> bytes) {
  ByteReader in{bytes};
  if (in.get<std::uint8_t>() != format) in.mark_broken();
  NcclFacts facts;
  facts.problem = in.get_text(problem_max);
  facts.version.code = in.get<std::int32_t>();
  facts.host = in.get_text(name_max);
  facts.device = in.get_text(name_max);
  const auto shares = in.get<std::uint8_t>(), has_id = in.get<std::uint8_t>();
  if (shares > 1 || has_id > 1) in.mark_broken();
  facts.shares_device = shares == 1;
  facts.has_id = has_id == 1;
  if (facts.has_id) {
    const ByteSpan id = in.get_raw(facts.id.size());
    std::ranges::copy(id, facts.id.begin());
  }
  facts.process = in.get<std::uint64_t>();
  facts.late_of = in.get<std::uint64_t>();
  ELRUN_TRY(in.finish("what a rank says of its NCCL"));
  return facts;
}

std::vector<Rank> nccl_roots(WorldSize world) {
  std::vector<Rank> roots;
  for (std::uint32_t rank = 0; rank < world.value(); rank += ranks_per_root) roots.push_back(Rank{rank});
  return roots;
}

std::uint64_t processes_of(std::span<const NcclFacts> all) {
  std::vector<std::uint64_t> numbers;
  for (const NcclFacts& each : all) numbers.push_back(each.process);
  std::ranges::sort(numbers);
  const Sha256 digest = sha256(std::as_bytes(std::span{numbers}));
  std::uint64_t out = 0;
  std::memcpy(&out, digest.data(), sizeof out);
  return std::max<std::uint64_t>(out, 1);
}

bool is_past(const NcclFacts& one, std::span<const NcclFacts> all) { return one.late_of != 0 && one.late_of != processes_of(all); }

std::optional<Failure> keeps_from_nccl(std::span<const NcclFacts> facts) {
  std::map<std::pair<std::string, std::string>, std::size_t> devices;
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    const NcclFacts& each = facts[rank];
    if (!each.problem.empty() && !is_past(each, facts))
      return failed(
          Code::refused, Remedy::fix_config, rank,
          fmt::format("rank {} cannot use NCCL: {}{}", rank, each.problem,
                      each.late_of == 0 ? "" : "; another rank may have stalled, so it is tried again, once, when the members change"));
    if (each.version != facts[0].version)
      return failed(Code::mismatch, Remedy::fix_config, rank,
                    fmt::format("rank 0 has NCCL {}, and rank {} has {}: all ranks need the same version", to_string(facts[0].version),
                                rank, to_string(each.version)));
    const auto [first, alone] = devices.try_emplace({each.host, each.device}, rank);
    const bool may_share = each.version >= nccl_shares_devices && each.shares_device && facts[first->second].shares_device;
    if (!alone && !may_share)
      return failed(
          Code::refused, Remedy::fix_config, rank,
          fmt::format(
              "ranks {} and {} use one device ({}), which NCCL {} refuses: give each worker a device of its own "
              "(--nproc_per_node no larger than the number of devices, or another ELRUN_DEVICE); if they are on different machines, "
              "NCCL_HOSTID has to differ there",
              first->second, rank, each.device, to_string(each.version)));
  }
  return std::nullopt;
}

Result<std::vector<NcclId>> agree_on_nccl(std::span<const NcclFacts> facts) {
  if (auto why = keeps_from_nccl(facts)) return *std::move(why);
  std::vector<NcclId> ids;
  for (const Rank root : nccl_roots(WorldSize{static_cast<std::uint32_t>(facts.size())})) {
    if (!facts[root.value()].has_id)
      return failed(Code::protocol, Remedy::abort_group, root.value(),
                    fmt::format("rank {} gave no id for the others to find each other", root.value()));
    ids.push_back(facts[root.value()].id);
  }
  return ids;
}

}  // namespace elrun::inline v0
