#pragma once
/// \file A model of 70 billion parameters with AdamW's moments, as large jobs have them: the tensors of Llama 3 70B, one unit per layer, and the
/// manifest of a save by as many ranks as one likes, whose files nobody wrote.

#include <string>
#include <vector>

#include "checkpoint/format/plan.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::test {

inline ModelTable model_of_70b() {
  constexpr std::uint64_t width = 8192, key_width = 1024, hidden = 28672, words = 128256;
  ModelTable model;
  for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) model.kinds.push_back({kind, DType::f32});
  const auto add = [&](std::string name, const std::vector<std::pair<std::string, Shape>>& tensors) {
    UnitInfo unit{std::move(name), 0, {}};
    for (const auto& [tensor, shape] : tensors) {
      unit.tensors.push_back({tensor, DType::f32, shape, unit.elements});
      unit.elements += element_count(shape);
    }
    model.units.push_back(std::move(unit));
  };
  add("model.embed_tokens", {{"weight", {words, width}}});
  for (int layer = 0; layer < 80; ++layer)
    add("model.layers." + std::to_string(layer), {{"self_attn.q_proj.weight", {width, width}},
                                                  {"self_attn.k_proj.weight", {key_width, width}},
                                                  {"self_attn.v_proj.weight", {key_width, width}},
                                                  {"self_attn.o_proj.weight", {width, width}},
                                                  {"mlp.gate_proj.weight", {hidden, width}},
                                                  {"mlp.up_proj.weight", {hidden, width}},
                                                  {"mlp.down_proj.weight", {width, hidden}},
                                                  {"input_layernorm.weight", {width}},
                                                  {"post_attention_layernorm.weight", {width}}});
  add("model.norm", {{"weight", {width}}});
  add("lm_head", {{"weight", {words, width}}});
  return model;
}

/// What rank `rank` of `world` has of each kind of each unit, without memory for it: its run of granules.
inline std::vector<Fragment> even_share(const ModelTable& model, std::uint32_t rank, std::uint32_t world) {
  std::vector<Fragment> share;
  for (const KindInfo& kind : model.kinds)
    for (std::uint64_t unit = 0; unit < model.units.size(); ++unit) {
      const auto [begin, end] = slice_of(0, model.units[unit].elements, rank, world);
      if (begin != end) share.push_back({kind.name, unit, begin, end, {}, false});
    }
  return share;
}

/// Parts as `world` ranks would write them; the checksums are made up.
inline Manifest even_manifest(const ModelTable& model, std::uint32_t world, std::uint64_t bytes_per_block = block_bytes) {
  const std::string root(32, 'a');
  std::vector<PartRecord> parts(world);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    PartRecord& part = parts[rank];
    part = {.id = {12000, 7, 1},
            .root = root,
            .rank = rank,
            .world = world,
            .file = {.name = shard_name(rank, world), .block_bytes = bytes_per_block},
            .fragments = {},
            .aux = {}};
    FileRecord& file = part.file;
    file.header_bytes = 32 * data_alignment;
    std::uint64_t at = file.header_bytes;
    std::uint32_t kind = 0;
    for (const Fragment& f : even_share(model, rank, world)) {
      if (f.kind != model.kinds[kind].name) {
        at = aligned_data(at);
        while (f.kind != model.kinds[kind].name) ++kind;
      }
      part.fragments.push_back({kind, static_cast<std::uint32_t>(f.unit), rank, f.begin, f.end, at});
      at += (f.end - f.begin) * size_of(model.kinds[kind].dtype);
    }
    file.table_offset = at;
    file.bytes = at + 4 * (block_count(at, file.block_bytes) + 1);
    file.header_crc = 2654435761u * (rank + 1), file.table_crc = 2246822519u * (rank + 1), file.file_crc = 3266489917u * (rank + 1);
  }
  Manifest head;
  head.id = parts[0].id;
  head.root = root;
  head.author.run_id = "large";
  head.author.wall_ns = 1'700'000'000'000'000'000;
  head.world = world;
  head.plan = {"abc", "seed: 7"};
  head.model = model;
  return merge(std::move(head), std::move(parts)).value();
}

}  // namespace elrun::test
