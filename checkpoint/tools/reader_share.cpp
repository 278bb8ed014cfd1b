#include "checkpoint/tools/reader_share.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "checkpoint/format/read_share.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {
namespace {

/// What a rank needs.
Needs needed(const ModelTable& model, const ReadingWorld& as, std::uint32_t rank) {
  Needs all;
  for (std::uint32_t kind = 0; kind < model.kinds.size(); ++kind)
    for (std::uint32_t u = 0; u < model.units.size(); ++u) {
      const std::uint64_t elements = model.units[u].elements;
      const bool is_sharded = model.kinds[kind].name == "param" ? as.parameters_are_sharded : as.others_are_sharded;
      if (!is_sharded || as.parts_each >= as.parts) {
        if (elements > 0) all.push_back({kind, u, 0, elements, 0});
        continue;
      }
      std::vector<std::uint32_t> parts;
      for (std::uint32_t i = 0; i < as.parts_each; ++i) parts.push_back((rank * as.parts_each + i) % as.parts);
      std::sort(parts.begin(), parts.end());
      for (const std::uint32_t part : parts)
        if (const auto [begin, end] = slice_of(0, elements, part, as.parts); begin < end) all.push_back({kind, u, begin, end, 0});
    }
  return all;
}

ReaderShare add_up(const Manifest& manifest, const std::vector<FileRange>& reads, std::uint32_t rank) {
  ReaderShare share{.rank = rank, .ranges = reads.size()};
  std::set<std::uint32_t> opened;
  for (const FileRange& r : reads) {
    share.read += r.bytes;
    if (const FileRecord& file = manifest.files[r.file]; opened.insert(r.file).second)
      share.read += file.header_bytes + (file.bytes - file.table_offset);
  }
  share.files = opened.size();
  return share;
}

}  // namespace

std::optional<ReadingWorld> reading_world(std::uint32_t world, std::string_view zero, std::uint32_t per_node) {
  const bool is_hybrid = zero.starts_with("hybrid"), is_mirrored = zero.starts_with("mirrored");
  const std::string_view stage = zero.substr(is_hybrid ? 6 : is_mirrored ? 8 : 0);
  const char least = is_hybrid ? '2' : is_mirrored ? '1' : '0';
  if (stage.size() != 1 || stage[0] < least || stage[0] > '3' || world == 0) return std::nullopt;
  const std::uint32_t node = per_node == 0 ? world : std::min(per_node, world);
  return ReadingWorld{world, is_hybrid ? node : world, is_mirrored ? 2u : 1u, stage[0] == '3', stage[0] != '0'};
}

Result<std::vector<ReaderShare>> reader_shares(const Manifest& manifest, const ReadingWorld& as) {
  std::vector<Needs> needs;
  for (std::uint32_t rank = 0; rank < as.world; ++rank) needs.push_back(needed(manifest.model, as, rank));
  ELRUN_TRY_ASSIGN(const auto reads, all_reads(manifest, needs));
  std::uint64_t host_state = 0;  // is everybody's
  for (const AuxRecord& aux : manifest.aux) host_state += aux.bytes;
  std::vector<ReaderShare> all;
  for (std::uint32_t rank = 0; rank < as.world; ++rank) {
    all.push_back(add_up(manifest, reads[rank], rank));
    all.back().bytes = host_state;
    for (const Wanted& w : needs[rank]) all.back().bytes += (w.end - w.begin) * size_of(manifest.model.kinds[w.kind].dtype);
  }
  return all;
}

}  // namespace elrun::inline v0
