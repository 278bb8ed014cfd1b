#include "checkpoint/staging/slot_record.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/format/state_layout.hpp"
#include "lib/base/crc32c.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::string_view slot_magic = "elrslot3";
static_assert(slot_magic.back() == static_cast<char>('0' + slot_version) &&
              std::string_view{ckptd_socket}.find(slot_magic.back()) != std::string_view::npos);
constexpr std::size_t prefix_fields = 8 + 4 + 4 + 3 * 8 + 3 * 8 + 4;  // up to the checksum of what does not change when the slot is sealed
constexpr std::size_t state_at = 8;
constexpr std::uint32_t ids_max = 1u << 20;
constexpr const char* no_root = "00000000000000000000000000000000";  // a slot belongs to no root yet

std::uint32_t prefix_crc(ByteSpan page) {
  return crc32c(page.subspan(state_at + 4, prefix_fields - state_at - 4), crc32c(page.first(state_at)));
}

void put_ids(ByteWriter& out, const std::vector<CheckpointId>& ids) {
  out.put(static_cast<std::uint32_t>(ids.size()));
  for (const CheckpointId& id : ids) out.put(id.step), out.put(id.fence), out.put(id.attempt);
}

CheckpointId get_id(ByteReader& in) {
  CheckpointId id{in.get<std::uint64_t>(), in.get<FenceNumber>(), in.get<std::uint32_t>()};
  if (id.step > step_max || id.fence > fence_max || id.attempt < 1 || id.attempt > attempt_max) in.mark_broken();
  return id;
}

/// A count of things of which each takes at least `least` bytes.
std::uint32_t get_count(ByteReader& in, std::uint64_t max, std::size_t least) {
  const auto count = in.get<std::uint32_t>();
  if (count <= max && count <= in.left() / least) return count;
  in.mark_broken();
  return 0;
}

std::vector<CheckpointId> get_ids(ByteReader& in) {
  std::vector<CheckpointId> ids(get_count(in, ids_max, 20));
  for (CheckpointId& id : ids) id = get_id(in);
  return ids;
}

const KindInfo* kind_of(const ModelTable& model, const std::string& name) {
  const auto at = std::find_if(model.kinds.begin(), model.kinds.end(), [&](const KindInfo& kind) { return kind.name == name; });
  return at == model.kinds.end() ? nullptr : &*at;
}

/// It is a run of the model, and lies in the data.
bool is_sound(const SlotFragment& f, const ModelTable& model, std::uint64_t data_bytes) {
  const KindInfo* kind = kind_of(model, f.kind);
  if (kind == nullptr || f.unit >= model.units.size() || f.begin > f.end || f.end > model.units[f.unit].elements) return false;
  return f.bytes == (f.end - f.begin) * size_of(kind->dtype) && f.bytes <= data_bytes && f.offset <= data_bytes - f.bytes;
}

}  // namespace

ByteVector encode(const SlotPrefix& prefix) {
  ByteWriter out;
  out.put_raw(as_bytes(slot_magic));
  out.put(static_cast<std::uint32_t>(prefix.state));
  out.put(prefix.record_crc);
  out.put(prefix.record_bytes);
  out.put(prefix.data_offset);
  out.put(prefix.data_bytes);
  const Generation& generation = prefix.owner.generation;
  out.put(generation.number), out.put(generation.lineage.bits[0]), out.put(generation.lineage.bits[1]);
  out.put(prefix.owner.rank);
  out.put(prefix_crc(out.bytes()));
  return out.take();
}

Result<SlotPrefix> decode_slot_prefix(ByteSpan page, std::uint64_t file_bytes) {
  if (page.size() < slot_page || file_bytes < slot_page || file_bytes > slot_bytes_max)
    return corrupt("a staging slot that is too short or too long");
  if (as_text(page.first(slot_magic.size())) != slot_magic) return corrupt("a staging slot of another format, or none at all");
  ByteReader in{page.subspan(slot_magic.size())};
  SlotPrefix prefix;
  const auto state = in.get<std::uint32_t>();
  prefix.record_crc = in.get<std::uint32_t>();
  prefix.record_bytes = in.get<std::uint64_t>();
  prefix.data_offset = in.get<std::uint64_t>();
  prefix.data_bytes = in.get<std::uint64_t>();
  Generation& generation = prefix.owner.generation;
  generation.number = in.get<std::uint64_t>();
  for (std::uint64_t& bits : generation.lineage.bits) bits = in.get<std::uint64_t>();
  prefix.owner.rank = in.get<std::uint32_t>();
  if (in.get<std::uint32_t>() != prefix_crc(page)) return corrupt("the head of a staging slot does not match its checksum");
  const bool is_sound = state <= static_cast<std::uint32_t>(SlotState::promised) && prefix.owner.rank < world_max &&
                        prefix.record_bytes <= slot_record_bytes_max && prefix.data_offset % slot_page == 0 &&
                        prefix.data_offset >= slot_page + prefix.record_bytes && prefix.data_offset <= file_bytes &&
                        prefix.data_bytes <= file_bytes - prefix.data_offset;
  if (!is_sound) return corrupt("the head of a staging slot names bytes outside of it");
  prefix.state = static_cast<SlotState>(state);
  return prefix;
}

ByteVector encode(const SlotRecord& record) {
  ByteWriter out;
  RunRecord run;
  run.root = no_root;
  run.author.run_id = record.run_id, run.author.generation = record.generation;
  run.plan = record.plan, run.model = record.model;
  out.put_text(encode(run));
  out.put(record.rank), out.put(record.world);
  out.put_text(record.directory);
  out.put(record.keep), out.put(record.rate), out.put(record.step);
  out.put(record.ownership.fence);
  put_ids(out, record.ownership.timeline);
  put_ids(out, record.ownership.whole);
  out.put(static_cast<std::uint32_t>(record.ownership.gives_up.size()));
  for (const GivenUp& g : record.ownership.gives_up) {
    out.put(g.id.step), out.put(g.id.fence), out.put(g.id.attempt);
    out.put_text(g.root);
  }
  out.put(static_cast<std::uint32_t>(record.fragments.size()));
  for (const SlotFragment& f : record.fragments) {
    out.put_text(f.kind);
    out.put(f.unit), out.put(f.begin), out.put(f.end), out.put(f.offset), out.put(f.bytes);
  }
  out.put(static_cast<std::uint32_t>(record.aux.size()));
  for (const Aux& a : record.aux) out.put_text(a.name), out.put_bytes(a.bytes);
  return out.take();
}

std::uint64_t bytes_in_record(std::span<const Aux> aux) {
  std::uint64_t bytes = 0;
  for (const Aux& a : aux) bytes += 2 * sizeof(std::uint32_t) + a.name.size() + a.bytes.size();
  return bytes;
}

Result<SlotRecord> decode_slot_record(ByteSpan bytes, std::uint64_t data_bytes) {
  ByteReader in{bytes};
  ELRUN_TRY_ASSIGN(RunRecord run, decode_run(in.get_bytes(slot_record_bytes_max), "the record of a staging slot"));
  SlotRecord record{.run_id = std::move(run.author.run_id),
                    .generation = run.author.generation,
                    .plan = std::move(run.plan),
                    .model = std::move(run.model)};
  record.rank = in.get<std::uint32_t>(), record.world = in.get<std::uint32_t>();
  record.directory = in.get_text(4096);
  record.keep = in.get<std::uint32_t>(), record.rate = in.get<std::uint64_t>(), record.step = in.get<std::uint64_t>();
  if (record.world < 1 || record.world > world_max || record.rank >= record.world || record.directory.empty() || record.step > step_max)
    in.mark_broken();
  record.ownership.fence = in.get<FenceNumber>();
  if (record.ownership.fence < 1 || record.ownership.fence > fence_max) in.mark_broken();
  record.ownership.timeline = get_ids(in);
  record.ownership.whole = get_ids(in);
  record.ownership.gives_up.resize(get_count(in, given_up_max, 24));
  for (GivenUp& g : record.ownership.gives_up) g.id = get_id(in), g.root = in.get_text(32);
  record.fragments.resize(get_count(in, fragments_max, 44));
  for (SlotFragment& f : record.fragments) {
    f.kind = in.get_text(256);
    f.unit = in.get<std::uint64_t>(), f.begin = in.get<std::uint64_t>(), f.end = in.get<std::uint64_t>();
    f.offset = in.get<std::uint64_t>(), f.bytes = in.get<std::uint64_t>();
    if (!is_sound(f, record.model, data_bytes)) in.mark_broken();
  }
  record.aux.resize(get_count(in, aux_max, 8));
  for (Aux& a : record.aux) {
    a.name = in.get_text(4096);
    const ByteSpan value = in.get_bytes(aux_bytes_max);
    a.bytes.assign(value.begin(), value.end());
  }
  if (auto whole = in.finish("the record of a staging slot"); !whole.ok()) return corrupt(whole.failure().what);
  return record;
}

SlotLayout lay_out_slot(const ModelTable& model, std::span<const Fragment> fragments) {
  SlotLayout out;
  for (const Fragment& f : fragments) out.fragments.push_back({f.kind, f.unit, f.begin, f.end, 0, f.bytes.size()});
  std::vector<std::pair<std::ptrdiff_t, SlotFragment*>> order;  // kinds as the model counts them
  for (SlotFragment& f : out.fragments) order.emplace_back(kind_of(model, f.kind) - model.kinds.data(), &f);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second->unit, a.second->begin) < std::tie(b.first, b.second->unit, b.second->begin);
  });
  const SlotFragment* before = nullptr;
  for (const auto& [kind, f] : order) {
    if (before != nullptr && before->kind != f->kind) out.data_bytes = aligned_data(out.data_bytes);
    f->offset = out.data_bytes;
    out.data_bytes += f->bytes;
    before = f;
  }
  return out;
}

}  // namespace elrun::inline v0
