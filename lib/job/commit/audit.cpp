#include "lib/job/commit/audit.hpp"

#include <algorithm>

#include "lib/job/declare/sampler.hpp"

namespace elrun::inline v0 {

std::optional<Audit> choose_audit(std::uint64_t seed, std::uint64_t step, double probability,
                                  const std::vector<std::vector<std::uint32_t>>& slots_by_rank) {
  const auto world = static_cast<std::uint32_t>(slots_by_rank.size());
  const auto random = named_stream(seed, "elrun.audit").four_bits(step);
  if (world < 2 || !(static_cast<double>(random[0]) < probability * 0x1p32)) return std::nullopt;
  std::uint32_t slots = 0;
  for (const auto& mine : slots_by_rank) slots += static_cast<std::uint32_t>(mine.size());
  Audit audit{.slot = random[1] % slots};
  std::vector<std::uint32_t> others;
  for (std::uint32_t r = 0; r < world; ++r)
    if (std::ranges::find(slots_by_rank[r], audit.slot) != slots_by_rank[r].end()) audit.owner = r;
    else others.push_back(r);
  for (const std::uint32_t number : {random[2], random[3]}) {
    if (others.empty()) break;
    const auto chosen = others.begin() + number % std::ssize(others);
    audit.auditors.push_back(*chosen);
    others.erase(chosen);
  }
  return audit;
}

}  // namespace elrun::inline v0
