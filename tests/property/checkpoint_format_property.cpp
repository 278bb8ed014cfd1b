/// \file Format 2 beside slower, obvious versions of the same: boxes, names in shards, rules of the layout, plans.

#include <map>
#include <numeric>
#include <set>

#include "checkpoint/format/boxes.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/plan.hpp"
#include "checkpoint/format/shard.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/format_one.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

/// With tensors of up to 4 dimensions, gaps between them, scalars, empty ones, tied ones and names that need care.
ModelTable random_named_model(Rng& rng) {
  ModelTable model = random_model(rng);
  const char* const names[] = {"w", "w[0:1]", "b.w", "bias", "50%", "x#2", "n@3"};
  for (UnitInfo& unit : model.units) {
    if (rng.chance(0.1)) continue;
    if (rng.chance(0.3)) unit.name += rng.chance(0.5) ? "[b" : "%5B.b";
    std::uint64_t at = rng.below(3), end = 0;
    const auto count = 1 + rng.below(6);
    for (std::uint64_t t = 0; t < count; ++t) {
      TensorInfo tensor{names[t], DType::f32, {}, at};
      for (auto dimensions = rng.below(5); dimensions > 0; --dimensions) tensor.shape.push_back(rng.chance(0.05) ? 0 : 1 + rng.below(7));
      const std::uint64_t elements = element_count(tensor.shape);
      end = std::max(end, at + elements);
      if (!rng.chance(0.1)) at += elements + (rng.chance(0.5) ? rng.below(5) : 0);
      unit.tensors.push_back(std::move(tensor));
    }
    unit.elements = std::max(end, at) + rng.below(4);
  }
  if (rng.chance(0.2) && model.units.size() > 1) {  // two tensors with one name
    model.units[0].name = "a", model.units[1].name = "a.b";
    model.units[0].elements = std::max<std::uint64_t>(model.units[0].elements, 3);
    model.units[0].tensors = {{"b.c", DType::f32, {3}, 0}};
    model.units[1].elements = std::max<std::uint64_t>(model.units[1].elements, 3);
    model.units[1].tensors = {{"c", DType::f32, {3}, 0}};
  }
  REQUIRE(problems(model).empty());
  return model;
}

/// Each kind of each unit in equal runs of `grain` elements, dealt out to ranks with a stride, as hybrid shards are.
std::vector<Held> dealt_cut(const ModelTable& model, std::uint32_t world, Rng& rng) {
  std::vector<Held> ranks(world);
  const auto stride = static_cast<std::uint32_t>(1 + rng.below(world));
  for (std::uint64_t kind = 0; kind < model.kinds.size(); ++kind)
    for (std::uint64_t unit = 0; unit < model.units.size(); ++unit) {
      const std::uint64_t elements = model.units[unit].elements, grain = std::max<std::uint64_t>(1, elements / (2 * world));
      std::uint32_t rank = 0, first = 0;
      for (std::uint64_t begin = 0; begin < elements; begin += grain) {
        ranks[rank].add(model, kind, unit, begin, std::min(begin + grain, elements), false);
        rank += stride;
        if (rank >= world) rank = first = (first + 1) % world;
      }
    }
  return ranks;
}

struct Written {
  Manifest manifest;
  std::vector<ShardLayout> shards;
  std::vector<FragmentRecord> rows;  // by kind, unit and begin; neighbours in one file are one
};

Written write(const ModelTable& model, const std::vector<Held>& held) {
  const auto world = static_cast<std::uint32_t>(held.size());
  const std::string root(32, 'a');
  const Author author{"run", Generation{3, {{1, 2}}}, 5};
  Written out;
  std::vector<PartRecord> parts;
  std::vector<FragmentRecord> rows;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    auto shard = lay_out_shard(model, {10, 3, 1}, root, author, rank, world, held[rank].fragments, aux_of_step(10), block_bytes_format_1);
    REQUIRE(said(shard) == "");
    rows.insert(rows.end(), shard->part.fragments.begin(), shard->part.fragments.end());
    parts.push_back(decode_part(as_bytes(encode(shard->part)), "part").value());
    REQUIRE(parts.back() == shard->part);
    out.shards.push_back(*std::move(shard));
  }
  const auto order = [](const FragmentRecord& f) { return std::tuple{f.kind, f.unit, f.begin}; };
  std::sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  for (const FragmentRecord& f : rows) {
    const bool follows = !out.rows.empty() && out.rows.back().kind == f.kind && out.rows.back().unit == f.unit &&
                         out.rows.back().file == f.file && out.rows.back().end == f.begin;
    if (follows) out.rows.back().end = f.end;
    else out.rows.push_back(f);
  }
  auto merged = merge({.format = checkpoint_format,
                       .id = {10, 3, 1},
                       .root = root,
                       .author = author,
                       .parent = {},
                       .world = world,
                       .plan = {"abc", "seed: 7"},
                       .model = model,
                       .files = {},
                       .layout = {},
                       .aux = {}},
                      std::move(parts));
  REQUIRE(said(merged) == "");
  out.manifest = *std::move(merged);
  return out;
}

std::vector<Held> any_cut(const ModelTable& model, std::uint32_t world, Rng& rng) {
  switch (rng.below(3)) {
    case 0: return dealt_cut(model, world, rng);
    case 1: return random_cut(model, world, ~0u, rng);  // all replicated: even slices
    default: return random_cut(model, world, static_cast<std::uint32_t>(rng.below(16)), rng);
  }
}

/// Row by row.
std::vector<ReadExtent> slow_plan(const Written& written, const std::vector<Fragment>& wanted) {
  std::vector<ReadExtent> reads;
  const ModelTable& model = written.manifest.model;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    for (const FragmentRecord& f : written.rows) {
      if (model.kinds[f.kind].name != wanted[i].kind || f.unit != wanted[i].unit) continue;
      const std::uint64_t from = std::max(f.begin, wanted[i].begin), until = std::min(f.end, wanted[i].end);
      const std::uint64_t size = size_of(model.kinds[f.kind].dtype);
      if (from < until)
        reads.push_back({f.file, f.offset + (from - f.begin) * size, (until - from) * size, i, (from - wanted[i].begin) * size});
    }
  std::sort(reads.begin(), reads.end(),
            [](const auto& a, const auto& b) { return std::tie(a.file, a.offset) < std::tie(b.file, b.offset); });
  return reads;
}

}  // namespace

TEST_CASE("a run of a tensor's elements is at most 2 D - 1 boxes, which hold its elements in their order", "[checkpoint]") {
  for_all_seeds(3000, [](Rng& rng) {
    Shape shape;
    for (auto dimensions = rng.below(5); dimensions > 0; --dimensions) shape.push_back(1 + rng.below(6));
    const std::uint64_t elements = element_count(shape), begin = rng.below(elements), end = begin + 1 + rng.below(elements - begin);
    const std::vector<Box> boxes = boxes_of(shape, begin, end);
    CHECK(boxes.size() <= std::max<std::size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
    std::uint64_t next = begin;
    for (const Box& box : boxes) {
      REQUIRE(box.size() == shape.size());
      std::vector<std::uint64_t> at;
      for (const auto& [from, until] : box) {
        REQUIRE(from < until);
        at.push_back(from);
      }
      for (bool more = true; more;) {
        std::uint64_t flat = 0;
        for (std::size_t d = 0; d < shape.size(); ++d) {
          REQUIRE(at[d] < shape[d]);
          flat = flat * shape[d] + at[d];
        }
        REQUIRE(flat == next++);
        more = false;
        for (std::size_t d = shape.size(); d-- > 0 && !more;) {
          more = ++at[d] < box[d].second;
          if (!more) at[d] = box[d].first;
        }
      }
    }
    CHECK(next == end);
  });
}

TEST_CASE("the headers of all shards alone say where each element of the state is", "[checkpoint]") {
  for_all_seeds(300, [](Rng& rng) {
    const ModelTable model = random_named_model(rng);
    const Written written = write(model, any_cut(model, static_cast<std::uint32_t>(1 + rng.below(6)), rng));
    std::map<std::string, std::uint64_t> unit_index;
    for (std::uint64_t u = 0; u < model.units.size(); ++u) unit_index[model.units[u].name] = u;
    std::set<std::string> keys;
    std::map<std::string, std::string> tensor_of_name;
    std::vector<FragmentRecord> seen;
    for (const ShardLayout& shard : written.shards) {
      const ShardHeader header = decode_shard_header(shard.header, shard.part.file.bytes, "shard").value();
      CHECK(header.metadata.at("elrun.format") == "2");
      const Json tensors = Json::parse(header.metadata.at("elrun.tensors")), units = Json::parse(header.metadata.at("elrun.units"));
      for (const auto& [name, elements] : units.items()) CHECK(model.units.at(unit_index.at(name)).elements == elements);
      for (const TensorEntry& entry : header.tensors) {
        if (entry.name.starts_with("__elrun_pad_") || entry.name == "__elrun_crc32c" || entry.name.starts_with("aux/")) continue;
        REQUIRE(keys.insert(entry.name).second);  // once in the whole checkpoint
        const bool flat = entry.name.starts_with("__elrun_flat/");
        const std::string key = flat ? entry.name.substr(13) : entry.name;
        const std::size_t slash = key.find('/'), bracket = key.find('[');
        const std::string kind = key.substr(0, slash), name = key.substr(slash + 1, bracket - slash - 1);
        std::vector<std::uint64_t> first;
        if (bracket != std::string::npos)
          for (const char* text = key.c_str() + bracket; *text != ']';) {
            char* rest = nullptr;
            first.push_back(std::strtoull(text + 1, &rest, 10));
            const std::uint64_t until = std::strtoull(rest + 1, &rest, 10);
            REQUIRE(until - first.back() == entry.shape.at(first.size() - 1));
            text = rest;
          }
        FragmentRecord f{.kind = static_cast<std::uint32_t>(index_of_kind(model, kind)), .file = shard.part.rank};
        CHECK(entry.dtype == model.kinds[f.kind].dtype);
        if (flat) {
          for (const UnitInfo& unit : model.units)
            if (without_bracket(unit.name) == name) f.unit = static_cast<std::uint32_t>(unit_index.at(unit.name));
          f.begin = first.at(0);
        } else {
          const Json& info = tensors.at(name);
          f.unit = static_cast<std::uint32_t>(unit_index.at(info.at("unit").get<std::string>()));
          const std::string tensor = std::to_string(f.unit) + "/" + info.at("tensor").get<std::string>();
          CHECK(tensor_of_name.try_emplace(name, tensor).first->second == tensor);
          const auto shape = info.at("shape").get<Shape>();
          if (first.empty()) CHECK(shape == entry.shape);
          std::uint64_t into = 0;
          for (std::size_t d = 0; d < first.size(); ++d) into = into * shape.at(d) + first[d];
          f.begin = info.at("offset").get<std::uint64_t>() + into;
        }
        f.end = f.begin + element_count(entry.shape);
        f.offset = shard.part.file.header_bytes + entry.begin;
        seen.push_back(f);
      }
    }
    const auto order = [](const FragmentRecord& f) { return std::tuple{f.kind, f.unit, f.begin}; };
    std::sort(seen.begin(), seen.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
    const FoundLayout found = layout_of(model, written.manifest.files, seen);
    CHECK(found.problem == "");
    CHECK(found.layout == written.manifest.layout);
  });
}

TEST_CASE("the rules of a layout say the same as a row per fragment, and a plan reads what the rows say", "[checkpoint]") {
  for_all_seeds(400, [](Rng& rng) {
    const ModelTable model = random_named_model(rng);
    const auto world = static_cast<std::uint32_t>(1 + rng.below(9));
    const Written written = write(model, any_cut(model, world, rng));
    REQUIRE(fragments_of(written.manifest) == written.rows);
    REQUIRE(run_count(written.manifest.layout) == written.rows.size());
    const std::string text = encode(written.manifest);
    const auto again = decode_manifest(as_bytes(text), "manifest");
    REQUIRE(said(again) == "");
    REQUIRE(*again == written.manifest);
    REQUIRE(encode(*again) == text);
    auto first = decode_manifest(as_bytes(manifest_in_format_one(written.manifest)), "manifest");
    REQUIRE(said(first) == "");
    CHECK(first->format == 1);
    first->format = checkpoint_format;
    REQUIRE(*first == written.manifest);
    const auto readers = static_cast<std::uint32_t>(1 + rng.below(9));
    for (const Held& held : any_cut(model, readers, rng)) {
      const auto plan = plan_reads(*again, held.fragments);
      REQUIRE(said(plan) == "");
      REQUIRE(*plan == slow_plan(written, held.fragments));
    }
  });
}
