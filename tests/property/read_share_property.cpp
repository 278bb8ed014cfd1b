/// \file Who reads what when all ranks of a world load together: each block once, and everybody gets all that it needs.

#include <chrono>
#include <map>
#include <set>

#include <fmt/format.h>

#include "checkpoint/format/read_share.hpp"
#include "checkpoint/format/shard.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/large_model.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

/// What each rank of a world needs: parts of what is sharded, in groups of `parts` ranks.
struct Placement {
  const char* name;
  bool parameters_are_sharded, others_are_sharded;
  std::uint32_t per_node;  // 0: all ranks are one group
  bool is_mirrored = false;
};
constexpr Placement placements[] = {
    {"zero 0", false, false, 0}, {"zero 1 and 2", false, true, 0},     {"zero 3", true, true, 0},          {"hybrid 2", false, true, 2},
    {"hybrid 3", true, true, 2}, {"mirrored 1", false, true, 0, true}, {"mirrored 3", true, true, 0, true}};

std::vector<Needs> needs_of_world(const ModelTable& model, std::uint32_t world, const Placement& as) {
  std::vector<Needs> all(world);
  const std::uint32_t parts = as.per_node == 0 ? world : std::min(world, as.per_node);
  for (std::uint32_t rank = 0; rank < world; ++rank)
    for (std::uint32_t kind = 0; kind < model.kinds.size(); ++kind)
      for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
        const bool is_sharded = model.kinds[kind].name == "param" ? as.parameters_are_sharded : as.others_are_sharded;
        const std::uint64_t elements = model.units[unit].elements;
        if (!is_sharded || (as.is_mirrored && world <= 2)) {
          if (elements > 0) all[rank].push_back({kind, unit, 0, elements, 0});
          continue;
        }
        std::vector<std::uint32_t> held{rank % parts};
        if (as.is_mirrored) held = {2 * rank % parts, (2 * rank + 1) % parts};
        std::sort(held.begin(), held.end());
        for (const std::uint32_t part : held)
          if (const auto [begin, end] = slice_of(0, elements, part, parts); begin < end) all[rank].push_back({kind, unit, begin, end, 0});
      }
  return all;
}

std::vector<FileRange> ranges_needed(const Manifest& m, const Needs& needs) {
  std::vector<FileRange> ranges;
  for (const Located& l : locate(m.layout, m.model, m.files, needs))
    ranges.push_back({l.file, l.offset, (l.part.end - l.part.begin) * size_of(m.model.kinds[l.part.kind].dtype)});
  for (const AuxRecord& a : m.aux)
    if (a.bytes > 0) ranges.push_back({a.file, a.offset, a.bytes});
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

/// Sorted, with neighbours in one.
std::vector<FileRange> joined(std::vector<FileRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<FileRange> out;
  for (const FileRange& r : ranges) {
    if (!out.empty() && out.back().file == r.file && out.back().end() == r.offset) out.back().bytes += r.bytes;
    else out.push_back(r);
  }
  return out;
}

std::uint64_t common_bytes(const FileRange& a, const FileRange& b) {
  if (a.file != b.file) return 0;
  const std::uint64_t from = std::max(a.offset, b.offset), until = std::min(a.end(), b.end());
  return from < until ? until - from : 0;
}

/// Bytes from storage: blocks, and for each file that a rank opens its header and block table.
std::uint64_t bytes_read(const Manifest& m, const std::vector<std::vector<FileRange>>& reads) {
  std::uint64_t all = 0;
  for (const auto& of_rank : reads) {
    std::set<std::uint32_t> opened;
    for (const FileRange& r : of_rank) {
      all += r.bytes;
      if (const FileRecord& f = m.files[r.file]; opened.insert(r.file).second) all += f.header_bytes + f.bytes - f.table_offset;
    }
  }
  return all;
}

std::uint64_t most(const std::vector<std::vector<FileRange>>& reads) {
  std::uint64_t most = 0;
  for (const auto& of_rank : reads) {
    std::uint64_t bytes = 0;
    for (const FileRange& r : of_rank) bytes += r.bytes;
    most = std::max(most, bytes);
  }
  return most;
}

/// No block twice, and whole blocks alone.
void require_blocks_once(const Manifest& m, const std::vector<std::vector<FileRange>>& reads) {
  std::vector<FileRange> all;
  for (const auto& of_rank : reads) all.insert(all.end(), of_rank.begin(), of_rank.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const FileRecord& file = m.files[all[i].file];
    REQUIRE(all[i].offset % file.block_bytes == 0);
    REQUIRE((all[i].end() == file.table_offset || all[i].end() % file.block_bytes == 0));
    if (i > 0 && all[i - 1].file == all[i].file) REQUIRE(all[i - 1].end() <= all[i].offset);
  }
}

/// Each rank's own view of the plan: what it reads is what all together say, and everybody gets each byte that it needs once.
void require_views_agree(const Manifest& m, const std::vector<Needs>& needs, const std::vector<std::vector<FileRange>>& reads) {
  std::vector<std::vector<FileRange>> got(needs.size());
  for (std::uint32_t rank = 0; rank < needs.size(); ++rank) {
    const auto share = share_of(m, needs, rank);
    REQUIRE(said(share) == "");
    std::vector<FileRange> own = share->alone;
    own.insert(own.end(), share->shared.begin(), share->shared.end());
    REQUIRE(joined(own) == joined(reads[rank]));
    for (const FileRange& need : ranges_needed(m, needs[rank]))
      for (const FileRange& r : own)
        if (const std::uint64_t bytes = common_bytes(need, r); bytes > 0)
          got[rank].push_back({r.file, std::max(need.offset, r.offset), bytes});
    for (const auto& passed : share->passed)
      for (const std::uint32_t to : share->askers[passed.askers])
        if (to != rank) got[to].push_back(passed.part);
  }
  for (std::uint32_t rank = 0; rank < needs.size(); ++rank) REQUIRE(joined(got[rank]) == joined(ranges_needed(m, needs[rank])));
}

/// Of some GB, so that headers weigh as little as they do; nobody has its bytes.
ModelTable model_of_gigabytes() {
  ModelTable model;
  for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) model.kinds.push_back({kind, DType::f32});
  for (int u = 0; u < 12; ++u) model.units.push_back({"unit." + std::to_string(u), 9'000'000u + 1111u * u, {}});
  return model;
}

/// Any ranges of any units, which may overlap those of others.
Needs any_needs(const ModelTable& model, Rng& rng) {
  Needs needs;
  for (std::uint32_t kind = 0; kind < model.kinds.size(); ++kind)
    for (std::uint32_t unit = 0; unit < model.units.size(); ++unit)
      for (std::uint64_t at = 0; at < model.units[unit].elements && rng.chance(0.7);) {
        const std::uint64_t begin = at + (rng.chance(0.5) ? 0 : rng.below(model.units[unit].elements - at));
        const std::uint64_t end = begin + 1 + rng.below(model.units[unit].elements - begin);
        needs.push_back({kind, unit, begin, end, 0});
        at = end;
      }
  return needs;
}

Manifest manifest_of(const ModelTable& model, const std::vector<Held>& held, std::uint64_t bytes_per_block) {
  const auto world = static_cast<std::uint32_t>(held.size());
  const std::string root(32, 'a');
  std::vector<PartRecord> parts;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    parts.push_back(lay_out_shard(model, {10, 3, 1}, root, {}, rank, world, held[rank].fragments, aux_of_step(10), bytes_per_block)->part);
  Manifest head{.id = {10, 3, 1},
                .root = root,
                .parent = {},
                .world = world,
                .plan = {"abc", "seed: 7"},
                .model = model,
                .files = {},
                .layout = {},
                .aux = {}};
  auto merged = merge(std::move(head), std::move(parts));
  REQUIRE(said(merged) == "");
  return *std::move(merged);
}

}  // namespace

TEST_CASE("all ranks of any world together read at most 1.02 times the state, however it was saved and is held", "[checkpoint]") {
  const ModelTable model = model_of_gigabytes();
  double worst = 0;
  for (std::uint32_t writers = 1; writers <= 8; ++writers) {
    const Manifest m = even_manifest(model, writers);
    for (std::uint32_t readers = 1; readers <= 8; ++readers)
      for (const Placement& as : placements) {
        INFO(writers << " ranks saved, " << readers << " read, " << as.name);
        const std::vector<Needs> needs = needs_of_world(model, readers, as);
        const auto reads = all_reads(m, needs);
        REQUIRE(said(reads) == "");
        require_blocks_once(m, *reads);
        require_views_agree(m, needs, *reads);
        const std::uint64_t all = bytes_read(m, *reads) + readers * encode(m).size();
        const double ratio = static_cast<double>(all) / static_cast<double>(state_bytes(model));
        worst = std::max(worst, ratio);
        REQUIRE(ratio <= 1.02);
        const bool is_even = as.per_node == 0 || readers % as.per_node == 0;  // an odd rank has a group of its own
        if (is_even) REQUIRE(most(*reads) <= state_bytes(model) / readers * 11 / 10 + (8u << 20));
      }
  }
  CHECK(worst >= 1);
  WARN(fmt::format("at most {:.4f} times the state was read", worst));
}

TEST_CASE("512 ranks saved 70 billion parameters, 96 read them: at most 1.02 times the state", "[checkpoint]") {
  const ModelTable model = model_of_70b();
  const Manifest m = even_manifest(model, 512);
  for (const Placement& as : placements) {
    const std::vector<Needs> needs =
        needs_of_world(model, 96, Placement{as.name, as.parameters_are_sharded, as.others_are_sharded, as.per_node * 4, as.is_mirrored});
    const auto reads = all_reads(m, needs);
    REQUIRE(said(reads) == "");
    require_blocks_once(m, *reads);
    const double ratio = static_cast<double>(bytes_read(m, *reads) + 96 * encode(m).size()) / static_cast<double>(state_bytes(model));
    const double largest = static_cast<double>(most(*reads)) * 96 / static_cast<double>(state_bytes(model));
    WARN(fmt::format("{}: {:.4f} times the state; the rank that reads the most reads {:.3f} times the mean", as.name, ratio, largest));
    CHECK(ratio <= 1.02);
    CHECK(largest <= 1.05);
  }
}

TEST_CASE("whatever ranks need, each block is read once, and each rank gets each byte once", "[checkpoint]") {
  for_all_seeds(300, [](Rng& rng) {
    const ModelTable model = random_model(rng);
    const std::uint64_t bytes_per_block = std::uint64_t{4096} << rng.below(5);
    const auto writers = static_cast<std::uint32_t>(1 + rng.below(6)), readers = static_cast<std::uint32_t>(1 + rng.below(8));
    const Manifest m = manifest_of(model, random_cut(model, writers, static_cast<std::uint32_t>(rng.below(16)), rng), bytes_per_block);
    std::vector<Needs> needs;
    for (std::uint32_t rank = 0; rank < readers; ++rank) {
      needs.push_back(!needs.empty() && rng.chance(0.3) ? needs.back() : any_needs(model, rng));
      REQUIRE(decode_needs(encode(needs.back()), model).value().size() == needs.back().size());
    }
    const auto reads = all_reads(m, needs);
    REQUIRE(said(reads) == "");
    require_blocks_once(m, *reads);
    require_views_agree(m, needs, *reads);
  });
}

TEST_CASE("what a rank says that it needs is checked before it is used", "[checkpoint]") {
  const ModelTable model = small_model();
  for_all_seeds(2000, [&](Rng& rng) {
    ByteVector bytes = encode(any_needs(model, rng));
    if (rng.chance(0.5)) bytes.resize(rng.below(bytes.size() + 1));
    for (auto n = rng.below(4); n > 0 && !bytes.empty(); --n) bytes[rng.below(bytes.size())] ^= std::byte(1u << rng.below(8));
    const auto needs = decode_needs(bytes, model);
    if (!needs.ok()) return;
    for (const Wanted& w : *needs) REQUIRE((w.kind < 2 && w.unit < 3 && w.begin < w.end && w.end <= model.units[w.unit].elements));
    for (std::size_t i = 1; i < needs->size(); ++i) {
      const Wanted &a = (*needs)[i - 1], &b = (*needs)[i];
      REQUIRE((std::tie(a.kind, a.unit) < std::tie(b.kind, b.unit) || (a.kind == b.kind && a.unit == b.unit && a.end <= b.begin)));
    }
  });
}
