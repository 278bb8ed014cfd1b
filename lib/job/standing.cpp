#include "lib/job/standing.hpp"

#include <algorithm>
#include <bit>

namespace elrun::inline v0 {

ByteVector encode(const Standing& s) {
  ByteWriter w;
  w.put(static_cast<std::uint8_t>(s.has_state));
  w.put(static_cast<std::uint8_t>(s.has_begun));
  for (const std::uint64_t n : {s.knowledge.applied, s.knowledge.decided, s.knowledge.voted}) w.put(n);
  w.put(std::bit_cast<std::uint32_t>(s.decision.squares));
  w.put(static_cast<std::uint8_t>(s.decision.finite));
  w.put(std::bit_cast<std::uint32_t>(s.decision.loss));
  w.put(s.decision.tokens);
  w.put(s.saved_step);
  w.put(s.parts);
  w.put(s.part);
  w.put(static_cast<std::uint8_t>(s.whole_parameters));
  return w.take();
}

Result<Standing> decode_standing(ByteSpan bytes) {
  ByteReader r{bytes};
  Standing s;
  s.has_state = r.get<std::uint8_t>() != 0;
  s.has_begun = r.get<std::uint8_t>() != 0;
  for (std::uint64_t* n : {&s.knowledge.applied, &s.knowledge.decided, &s.knowledge.voted}) *n = r.get<std::uint64_t>();
  s.decision.squares = std::bit_cast<float>(r.get<std::uint32_t>());
  s.decision.finite = r.get<std::uint8_t>() != 0;
  s.decision.loss = std::bit_cast<float>(r.get<std::uint32_t>());
  s.decision.tokens = r.get<std::uint64_t>();
  s.saved_step = r.get<std::uint64_t>();
  s.parts = r.get<std::uint32_t>();
  s.part = r.get<std::uint32_t>();
  s.whole_parameters = r.get<std::uint8_t>() != 0;
  const Knowledge& k = s.knowledge;
  if (s.part >= s.parts || k.applied > k.decided || k.decided > k.voted || k.voted > k.applied + 1) r.mark_broken();
  ELRUN_TRY(r.finish("a member's standing"));
  return s;
}

Heritage heritage(std::span<const Standing> standings, std::uint64_t step, bool replicated) {
  Heritage out;
  out.brings.resize(standings.size());
  const auto has = [&](const Standing& s) { return s.has_state && s.knowledge.applied == step; };
  // The cut of the first member whose cut has all its parts here; what members of another one have is of no use now.
  for (const Standing& candidate : standings) {
    if (!has(candidate)) continue;
    out.found = true;
    if (out.complete) break;
    out.givers.clear();
    std::fill(out.brings.begin(), out.brings.end(), std::nullopt);
    for (std::uint32_t r = 0; r < standings.size(); ++r) {
      const Standing& s = standings[r];
      if (!has(s)) continue;
      if (replicated) {
        out.brings[r] = static_cast<std::uint32_t>(out.givers.size());
        out.givers.push_back(r);
      } else if (s.parts == candidate.parts) {
        out.brings[r] = s.part;
      }
    }
    out.parts = replicated ? static_cast<std::uint32_t>(out.givers.size()) : candidate.parts;
    if (!replicated && out.parts <= standings.size()) {
      std::vector<std::optional<std::uint32_t>> by_part(out.parts);
      for (std::uint32_t r = 0; r < standings.size(); ++r)
        if (out.brings[r]) {
          auto& giver = by_part[*out.brings[r]];
          if (giver) out.brings[r].reset();  // it is given already; this one gets its new shard like a newcomer
          else giver = r;
        }
      for (const auto& rank : by_part)
        if (rank) out.givers.push_back(*rank);
    }
    out.complete = out.givers.size() == out.parts;
  }
  if (!out.complete) return out;
  for (std::uint32_t r = 0; r < standings.size(); ++r)
    out.moves |= !out.brings[r] || !standings[r].whole_parameters ||
                 (!replicated && (out.parts != standings.size() || *out.brings[r] != r));
  return out;
}

}  // namespace elrun::inline v0
