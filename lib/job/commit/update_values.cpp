#include "lib/job/commit/update_values.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace elrun::inline v0 {
namespace {

struct Field {
  std::string_view name;
  bool flag = false;
};

/// The optimizer's own values, behind lr and clip_norm.
std::span<const Field> fields_of(Optimizer optimizer) {
  static constexpr Field adamw[] = {{"beta1"}, {"beta2"}, {"epsilon"}, {"weight_decay"}},
                         sgd[] = {{"momentum"}, {"nesterov", true}, {"weight_decay"}}, lion[] = {{"beta1"}, {"beta2"}, {"weight_decay"}};
  switch (optimizer) {
    case Optimizer::adamw: return adamw;
    case Optimizer::sgd: return sgd;
    case Optimizer::lion: return lion;
  }
  return {};
}

struct Bits {
  std::array<std::uint32_t, 7> all{};
  std::size_t count = 0;
  void put(float value) { all[count++] = std::bit_cast<std::uint32_t>(value); }
  void operator()(const AdamW& o) { put(o.beta1), put(o.beta2), put(o.epsilon), put(o.weight_decay); }
  void operator()(const Sgd& o) { put(o.momentum), all[count++] = o.nesterov, put(o.weight_decay); }
  void operator()(const Lion& o) { put(o.beta1), put(o.beta2), put(o.weight_decay); }
};

constexpr std::uint32_t kinds = std::variant_size_v<AnyOptimizer>;

struct Difference {
  std::string name, one, other;
};

std::vector<Difference> differences(const UpdateValues& one, const UpdateValues& other) {
  const auto kind = [](const UpdateValues& v) {
    const char* const name = v.kind > 0 && v.kind <= kinds ? name_of(static_cast<Optimizer>(v.kind - 1)) : nullptr;
    return std::string{name == nullptr ? "unknown" : name};
  };
  std::vector<Difference> out;
  if (one.kind != other.kind) return {{"the optimizer", kind(one), kind(other)}};
  const auto own = one.known() && one.kind <= kinds ? fields_of(static_cast<Optimizer>(one.kind - 1)) : std::span<const Field>{};
  for (std::size_t i = 0; i < one.bits.size(); ++i) {
    if (one.bits[i] == other.bits[i]) continue;
    const Field field = i == 0               ? Field{"lr"}
                        : i == 1             ? Field{"clip_norm"}
                        : i - 2 < own.size() ? own[i - 2]
                                             : Field{"a value that this version does not know"};
    // The shortest decimal that gives the same float: two that differ in a bit differ here, too.
    const auto text = [&](std::uint32_t bits) {
      return field.flag ? std::string{bits != 0 ? "true" : "false"} : fmt::format("{}", std::bit_cast<float>(bits));
    };
    out.push_back({std::string{field.name}, text(one.bits[i]), text(other.bits[i])});
  }
  return out;
}

Result<void> told(std::uint64_t step, const std::vector<std::string>& what) {
  if (what.empty()) return {};
  return Failure{
      Code::mismatch, Remedy::fix_config,
      fmt::format(
          "step {} was not applied: {}. What apply() gets has to be the same on all ranks, and the same when a step is done again: compute it "
          "from step.number() (a Schedule can be passed as lr), or register the variable from which it follows with job.state(name, variable) "
          "before restore()",
          step, fmt::join(what, "; "))};
}

}  // namespace

UpdateValues values_of(const AnyOptimizer& optimizer, const UpdateOptions& options) {
  Bits bits;
  bits.put(options.lr), bits.put(options.clip_norm);
  std::visit(bits, optimizer);
  return {1 + static_cast<std::uint32_t>(kind_of(optimizer)), bits.all};
}

Result<void> check_update(std::uint64_t step, std::span<const UpdateReport> by_rank) {
  std::vector<std::string> what;
  for (std::size_t r = 1; r < by_rank.size() && what.empty(); ++r)
    for (const Difference& d : differences(by_rank[0].passed, by_rank[r].passed))
      what.push_back(fmt::format("{} is {} on rank 0 and {} on rank {}", d.name, d.one, d.other, r));
  const auto remembers = std::ranges::find_if(by_rank, [](const UpdateReport& report) { return report.remembered.known(); });
  const std::size_t between_ranks = what.size();
  for (std::size_t r = 0; r < by_rank.size() && remembers != by_rank.end() && what.size() == between_ranks; ++r)
    for (const Difference& d : differences(remembers->remembered, by_rank[r].passed))
      what.push_back(fmt::format("{} was {} when this step was decided before, and is {} on rank {} now that it is done again", d.name,
                                 d.one, d.other, r));
  // Beside a difference between ranks, too: of a newcomer and a survivor, only the survivor's first values say what happened.
  for (std::size_t r = 0; r < by_rank.size() && what.size() == between_ranks; ++r)
    if (by_rank[r].tried.known())
      for (const Difference& d : differences(by_rank[r].tried, by_rank[r].passed))
        what.push_back(fmt::format(
            "{} was {} on rank {} when apply() was called for this step before and the world was lost, and is {} now that it is done again",
            d.name, d.one, r, d.other));
  return told(step, what);
}

Result<void> check_decided_update(std::uint64_t step, std::span<const UpdateValues> by_rank) {
  std::vector<std::string> what;
  const auto first = std::ranges::find_if(by_rank, &UpdateValues::known);
  for (auto at = first; at != by_rank.end() && what.empty(); ++at)
    if (at->known())
      for (const Difference& d : differences(*first, *at))
        what.push_back(fmt::format("{} was {} on rank {} and {} on rank {}, which did this step in two generations", d.name, d.one,
                                   first - by_rank.begin(), d.other, at - by_rank.begin()));
  return told(step, what);
}

std::string as_at_first(const UpdateValues& now, const UpdateValues& last, std::uint64_t last_step) {
  std::string text;
  for (const Difference& d : differences(now, last))
    text += fmt::format("{}{} is {}, as in step 0, and was {} in step {}", text.empty() ? "" : "; ", d.name, d.one, d.other, last_step);
  return text;
}

UpdateValues UpdateMemory::of(std::uint64_t step) const {
  auto at = runs_.upper_bound(step);
  if (at == runs_.begin()) return {};
  --at;
  return step < at->second.end ? at->second.values : UpdateValues{};
}

void UpdateMemory::try_first(std::uint64_t step, const UpdateValues& values) {
  if (!tried(step).known()) tried_step_ = step, tried_ = values;
}

void UpdateMemory::remember(std::uint64_t step, const UpdateValues& values) {
  if (of(step) == values) return;
  forget(step);
  auto at = runs_.insert_or_assign(step, Run{step + 1, values}).first;
  if (at != runs_.begin())
    if (const auto before = std::prev(at); before->second.end == step && before->second.values == values) {
      before->second.end = step + 1;
      runs_.erase(at);
      at = before;
    }
  if (const auto after = std::next(at); after != runs_.end() && after->first == step + 1 && after->second.values == values) {
    at->second.end = after->second.end;
    runs_.erase(after);
  }
  if (runs_.size() > places_max) runs_.erase(runs_.begin());
}

/// Cuts a run in two where it has the step.
void UpdateMemory::forget(std::uint64_t step) {
  auto at = runs_.upper_bound(step);
  if (at == runs_.begin()) return;
  --at;
  if (step >= at->second.end) return;
  const Run whole = at->second;
  if (at->first == step) runs_.erase(at);
  else at->second.end = step;
  if (step + 1 < whole.end) runs_.emplace(step + 1, whole);
}

}  // namespace elrun::inline v0
