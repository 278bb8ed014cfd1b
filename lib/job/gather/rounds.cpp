#include "lib/job/gather/rounds.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace elrun::inline v0 {

std::string to_string(const Phase& phase) {
  switch (phase.what) {
    case Phase::What::between: return fmt::format("between slots, with step {} to come", phase.step);
    case Phase::What::slot: return fmt::format("in slot {} of its own in step {}", phase.index, phase.step);
    case Phase::What::evaluation: return fmt::format("in an evaluation before step {}", phase.step);
  }
  return "nowhere known";
}

namespace {

/// What is easily done by one rank alone, for it is right everywhere else.
std::string_view hint(const Phase& a, const Phase& b) {
  const auto is = [&](Phase::What what) { return a.what == what || b.what == what; };
  if (a.step != b.step || !is(Phase::What::between) || !is(Phase::What::slot)) return "";
  return "; between next_step() and the first slot all ranks use the same units: one rank alone may use some after apply(), or in a slot";
}

}  // namespace

Result<void> check(std::span<const Need> by_rank, std::uint64_t units) {
  for (std::uint32_t r = 1; r < by_rank.size(); ++r)
    if (by_rank[r].phase != by_rank[0].phase) {
      Failure f{Code::mismatch, Remedy::fix_config,
                fmt::format("rank {} is {}, but rank 0 is {}: all processes run the same program, and come to the same calls{}", r,
                            to_string(by_rank[r].phase), to_string(by_rank[0].phase), hint(by_rank[r].phase, by_rank[0].phase))};
      f.peer = Rank{r};
      return f;
    }
  for (std::uint32_t r = 0; r < by_rank.size(); ++r) {
    const Need& need = by_rank[r];
    std::string what;
    if ((need.gather != Need::nothing && need.gather >= units) || (need.hand_off != Need::nothing && need.hand_off >= units))
      what = fmt::format("rank {} asks for unit {} or {}, and there are {}", r, need.gather, need.hand_off, units);
    else if (need.hand_off != Need::nothing && need.phase.what != Phase::What::slot)
      what = fmt::format("rank {} hands off a leaf of unit {} {}, where none is made", r, need.hand_off, to_string(need.phase));
    if (what.empty()) continue;
    Failure f{Code::protocol, Remedy::abort_group, std::move(what)};
    f.peer = Rank{r};
    return f;
  }
  return {};
}

void put_off(std::span<Need> by_rank, std::span<const std::uint32_t> handed) {
  if (handed.empty()) return;
  const std::uint32_t least = std::ranges::min(handed);
  for (std::size_t r = 0; r < handed.size(); ++r)
    if (by_rank[r].hand_off != Need::nothing && handed[r] > least) by_rank[r].hand_off = Need::nothing, by_rank[r].last = 0;
}

}  // namespace elrun::inline v0
