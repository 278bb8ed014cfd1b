#include "checkpoint/tools/reader_share.hpp"

#include <algorithm>
#include <tuple>

#include "checkpoint/format/plan.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {
namespace {

/// What a rank needs. The spans have a length and no memory: a plan looks at nothing else.
std::vector<Fragment> needed(const ModelTable& model, const ReadingWorld& as, std::uint32_t rank) {
  std::vector<Fragment> all;
  for (const KindInfo& kind : model.kinds)
    for (std::uint64_t u = 0; u < model.units.size(); ++u) {
      const std::uint64_t elements = model.units[u].elements;
      const bool is_sharded = kind.name == "param" ? as.parameters_are_sharded : as.others_are_sharded;
      const auto [begin, end] =
          is_sharded ? slice_of(0, elements, rank % as.parts, as.parts) : std::pair<std::uint64_t, std::uint64_t>{0, elements};
      if (begin < end)
        all.push_back(
            {kind.name, u, begin, end, std::span<std::byte>{static_cast<std::byte*>(nullptr), (end - begin) * size_of(kind.dtype)}});
    }
  return all;
}

ReaderShare add_up(const Manifest& manifest, const std::vector<ReadExtent>& reads, std::uint32_t rank) {
  ReaderShare share{.rank = rank};
  std::uint64_t read_until = 0;  // of this file's blocks
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const ReadExtent& r = reads[i];
    const bool is_first = i == 0 || reads[i - 1].file != r.file;
    const FileRecord& file = manifest.files[r.file];
    if (is_first) {
      ++share.files;
      share.read += file.header_bytes + (file.bytes - file.table_offset);
      read_until = 0;
    }
    if (is_first || reads[i - 1].offset + reads[i - 1].bytes != r.offset) ++share.ranges;
    share.bytes += r.bytes;
    const std::uint64_t block = file.block_bytes;
    const std::uint64_t from = std::max(read_until, r.offset / block * block);
    const std::uint64_t until = std::min(file.table_offset, (r.offset + r.bytes + block - 1) / block * block);
    if (until > from) share.read += until - from;
    read_until = std::max(read_until, until);
  }
  return share;
}

}  // namespace

std::optional<ReadingWorld> reading_world(std::uint32_t world, std::string_view zero, std::uint32_t per_node) {
  const bool is_hybrid = zero.starts_with("hybrid");
  const std::string_view stage = is_hybrid ? zero.substr(6) : zero;
  if (stage.size() != 1 || stage[0] < (is_hybrid ? '2' : '0') || stage[0] > '3' || world == 0) return std::nullopt;
  const std::uint32_t node = per_node == 0 ? world : std::min(per_node, world);
  return ReadingWorld{world, is_hybrid ? node : world, stage[0] == '3', stage[0] != '0'};
}

Result<std::vector<ReaderShare>> reader_shares(const Manifest& manifest, const ReadingWorld& as) {
  std::vector<ReaderShare> all;
  for (std::uint32_t rank = 0; rank < as.world; ++rank) {
    const std::vector<Fragment> fragments = needed(manifest.model, as, rank);
    ELRUN_TRY_ASSIGN(std::vector<ReadExtent> reads, plan_reads(manifest, fragments));
    for (const AuxRecord& aux : manifest.aux)  // host state is everybody's
      if (aux.bytes > 0) reads.push_back({aux.file, aux.offset, aux.bytes, fragments.size(), 0});
    std::sort(reads.begin(), reads.end(),
              [](const ReadExtent& a, const ReadExtent& b) { return std::tie(a.file, a.offset) < std::tie(b.file, b.offset); });
    all.push_back(add_up(manifest, reads, rank));
  }
  return all;
}

}  // namespace elrun::inline v0
