#include "checkpoint/commit/suspects.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

// What is alike comes side by side, earlier generations first.
bool comes_before(const FailedAfter& a, const FailedAfter& b) {
  return std::tie(a.id, a.how, a.step, a.generation) < std::tie(b.id, b.how, b.step, b.generation);
}

/// The failures after one step: the first and the last generation in which there was one.
struct AfterStep {
  const FailedAfter *first = nullptr, *last = nullptr;
};

std::string told(const FailedAfter& first, const FailedAfter& last) {
  return fmt::format("generations {} and {} went on from it, and in both a worker ended by {} after step {} (node{} {})", first.generation,
                     last.generation, last.how, last.step, first.node == last.node ? "" : "s",
                     first.node == last.node ? first.node : first.node + " and " + last.node);
}

/// Of starts, whichever checkpoint they went on from.
void forget_failures_of_all_starts(std::vector<FailedAfter>& failures) {
  const auto is_of_start = [](const FailedAfter& f) { return f.step <= f.id.step; };
  std::map<std::string, std::set<CheckpointId>> after;
  for (const FailedAfter& f : failures)
    if (is_of_start(f)) after[f.how].insert(f.id);
  std::erase_if(failures, [&](const FailedAfter& f) { return is_of_start(f) && after[f.how].size() > 1; });
}

}  // namespace

std::vector<Suspect> suspects(std::vector<FailedAfter> failures) {
  forget_failures_of_all_starts(failures);
  std::sort(failures.begin(), failures.end(), comes_before);
  std::vector<Suspect> all;
  AfterStep before, now;  // the step before, and the one at hand, of one checkpoint and one way to fail
  for (const FailedAfter& f : failures) {
    const bool is_same_way = now.first != nullptr && now.first->id == f.id && now.first->how == f.how;
    if (!is_same_way || now.first->step != f.step) {
      before = is_same_way && now.first->step + 1 == f.step ? now : AfterStep{};
      now = {&f, &f};
    }
    now.last = &f;
    if (!all.empty() && all.back().id == f.id) continue;
    const FailedAfter& first = before.first != nullptr && before.first->generation < now.first->generation ? *before.first : *now.first;
    const FailedAfter& last = before.last != nullptr && before.last->generation > now.last->generation ? *before.last : *now.last;
    if (first.generation != last.generation) all.push_back({f.id, told(first, last)});
  }
  return all;
}

}  // namespace elrun::inline v0
