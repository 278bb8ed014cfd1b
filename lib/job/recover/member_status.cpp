#include "lib/job/recover/member_status.hpp"

#include <algorithm>
#include <bit>

#include "lib/job/evaluate/evaluation.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t node_name_max = 4096;
constexpr std::uint32_t world_max = 1 << 20;  // as in a worker's environment

void put(ByteWriter& w, const Generation& g) {
  for (const std::uint64_t n : {g.number, g.lineage.bits[0], g.lineage.bits[1]}) w.put(n);
}

Generation generation_from(ByteReader& r) {
  Generation g;
  for (std::uint64_t* n : {&g.number, &g.lineage.bits[0], &g.lineage.bits[1]}) *n = r.get<std::uint64_t>();
  return g;
}

void put(ByteWriter& w, const Cut& cut) {
  for (const std::uint32_t n : {cut.parts, cut.part, cut.count}) w.put(n);
}

Cut cut_from(ByteReader& r) {
  Cut cut;
  for (std::uint32_t* n : {&cut.parts, &cut.part, &cut.count}) *n = r.get<std::uint32_t>();
  if (cut.part >= cut.parts || cut.count == 0 || cut.count > parts_held_max || cut.count > cut.parts) r.mark_broken();
  return cut;
}

void put(ByteWriter& w, const UpdateValues& values) {
  w.put(values.kind);
  for (const std::uint32_t bits : values.bits) w.put(bits);
}

UpdateValues values_from(ByteReader& r) {
  UpdateValues values;
  values.kind = r.get<std::uint32_t>();
  for (std::uint32_t& bits : values.bits) bits = r.get<std::uint32_t>();
  return values;
}

}  // namespace

ByteVector encode(const MemberStatus& s) {
  ByteWriter w;
  w.put(static_cast<std::uint8_t>(s.has_state));
  w.put(static_cast<std::uint8_t>(s.has_host_state));
  w.put(static_cast<std::uint8_t>(s.missed_none));
  w.put(static_cast<std::uint8_t>(s.coordinator_changed));
  w.put(static_cast<std::uint8_t>(s.has_begun));
  w.put(static_cast<std::uint8_t>(s.is_past_restore));
  w.put(static_cast<std::uint8_t>(s.keeps_position));
  for (const std::uint64_t n : {s.knowledge.applied, s.knowledge.decided, s.knowledge.voted}) w.put(n);
  put(w, s.knowledge.decided_in);
  put(w, s.knowledge.voted_in);
  w.put(std::bit_cast<std::uint32_t>(s.decision.squares));
  w.put(static_cast<std::uint8_t>(s.decision.finite));
  w.put(std::bit_cast<std::uint32_t>(s.decision.loss));
  w.put(s.decision.tokens);
  w.put(s.decision.count);
  put(w, s.decision.update);
  put(w, s.voted_update);
  w.put(static_cast<std::uint8_t>(s.decision.stops));
  w.put(s.saved_step);
  w.put(s.unsaved_for.count());
  w.put(s.slot.count());
  w.put(s.remembered_step);
  w.put(s.remembered_decided);
  put(w, s.held.cut);
  put(w, s.held.recut_in);
  put(w, s.held.next);
  put(w, s.held.next_in);
  w.put(static_cast<std::uint8_t>(s.checkpoints.size()));
  for (const HeldCheckpoint& held : s.checkpoints) w.put(held.step), put(w, held.taken_in), put(w, held.cut);
  w.put(static_cast<std::uint8_t>(s.whole_parameters));
  w.put_text(s.node);
  w.put(static_cast<std::uint8_t>(s.device.kind));
  w.put(static_cast<std::uint32_t>(s.device.index));
  put(w, s.before.generation);
  w.put(s.before.rank);
  w.put(s.before.world);
  w.put(static_cast<std::uint8_t>(s.copies));
  w.put(s.evaluations);
  w.put_bytes(s.evaluation);
  return w.take();
}

Result<MemberStatus> decode_member_status(ByteSpan bytes) {
  ByteReader r{bytes};
  MemberStatus s;
  s.has_state = r.get<std::uint8_t>() != 0;
  s.has_host_state = r.get<std::uint8_t>() != 0;
  s.missed_none = r.get<std::uint8_t>() != 0;
  s.coordinator_changed = r.get<std::uint8_t>() != 0;
  s.has_begun = r.get<std::uint8_t>() != 0;
  s.is_past_restore = r.get<std::uint8_t>() != 0;
  s.keeps_position = r.get<std::uint8_t>() != 0;
  for (std::uint64_t* n : {&s.knowledge.applied, &s.knowledge.decided, &s.knowledge.voted}) *n = r.get<std::uint64_t>();
  s.knowledge.decided_in = generation_from(r);
  s.knowledge.voted_in = generation_from(r);
  s.decision.squares = std::bit_cast<float>(r.get<std::uint32_t>());
  s.decision.finite = r.get<std::uint8_t>() != 0;
  s.decision.loss = std::bit_cast<float>(r.get<std::uint32_t>());
  s.decision.tokens = r.get<std::uint64_t>();
  s.decision.count = r.get<std::uint64_t>();
  s.decision.update = values_from(r);
  s.voted_update = values_from(r);
  s.decision.stops = r.get<std::uint8_t>() != 0;
  s.saved_step = r.get<std::uint64_t>();
  s.unsaved_for = Duration{r.get<Duration::rep>()};
  s.slot = Duration{r.get<Duration::rep>()};
  s.remembered_step = r.get<std::uint64_t>();
  s.remembered_decided = r.get<std::uint64_t>();
  s.held.cut = cut_from(r);
  s.held.recut_in = generation_from(r);
  s.held.next = cut_from(r);
  s.held.next_in = generation_from(r);
  const auto checkpoints = r.get<std::uint8_t>();
  for (std::size_t i = 0; i < std::min<std::size_t>(checkpoints, checkpoints_held_max); ++i) {
    HeldCheckpoint& held = s.checkpoints.emplace_back();
    held.step = r.get<std::uint64_t>();
    held.taken_in = generation_from(r);
    held.cut = cut_from(r);
  }
  s.whole_parameters = r.get<std::uint8_t>() != 0;
  s.node = r.get_text(node_name_max);
  const auto kind = r.get<std::uint8_t>();
  s.device = {kind == 0 ? DeviceKind::host : DeviceKind::cuda, static_cast<int>(r.get<std::uint32_t>())};
  s.before.generation = generation_from(r);
  s.before.rank = r.get<std::uint32_t>();
  s.before.world = r.get<std::uint32_t>();
  const auto copies = r.get<std::uint8_t>();
  s.copies = static_cast<Copies>(std::min(copies, static_cast<std::uint8_t>(Copies::together)));
  s.evaluations = r.get<std::uint64_t>();
  const ByteSpan evaluation = r.get_bytes(evaluation_bytes_max);
  s.evaluation.assign(evaluation.begin(), evaluation.end());
  const Knowledge& k = s.knowledge;
  if (checkpoints > checkpoints_held_max || s.unsaved_for < Duration{0} || s.slot < Duration{0} ||
      kind > static_cast<std::uint8_t>(DeviceKind::cuda) || copies > static_cast<std::uint8_t>(Copies::together) ||
      s.before.world > world_max || (s.before.world == 0 ? s.before.rank != 0 : s.before.rank >= s.before.world) || s.device.index < 0 ||
      k.applied > k.decided || k.decided > k.voted || k.voted > k.applied + 1)
    r.mark_broken();
  ELRUN_TRY(r.finish("a member's status"));
  return s;
}

}  // namespace elrun::inline v0
