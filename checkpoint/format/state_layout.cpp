#include "checkpoint/format/state_layout.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {
namespace {

struct Run {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t rank = 0;
  [[nodiscard]] std::uint64_t size() const { return end - begin; }
};

/// The longest progressions from the left. The same runs give the same rules.
UnitSplit rules_of(std::span<const Run> runs) {
  UnitSplit split;
  for (std::size_t i = 0; i < runs.size();) {
    RankRuns rule{.begin = runs[i].begin, .each = runs[i].size(), .count = 1, .rank = runs[i].rank, .step = 0};
    std::size_t next = i + 1;
    if (next < runs.size() && runs[next].size() == rule.each && runs[next].rank > rule.rank) rule.step = runs[next].rank - rule.rank;
    while (rule.step != 0 && next < runs.size() && runs[next].size() == rule.each && runs[next].rank == runs[next - 1].rank + rule.step)
      ++next;
    rule.count = static_cast<std::uint32_t>(next - i);
    split.push_back(rule);
    i = next;
  }
  return split;
}

/// Gives equal splits one number.
class SplitNumbers {
 public:
  std::uint32_t number_of(UnitSplit split, std::vector<UnitSplit>& splits) {
    std::vector<std::uint64_t> key;
    key.reserve(split.size() * 4);
    for (const RankRuns& r : split) key.insert(key.end(), {r.each, r.count, r.rank, r.step});
    const auto [at, is_new] = numbers_.try_emplace(std::move(key), static_cast<std::uint32_t>(splits.size()));
    if (is_new) splits.push_back(std::move(split));
    return at->second;
  }

 private:
  std::map<std::vector<std::uint64_t>, std::uint32_t> numbers_;
};

/// Where the next element goes, in each of the chosen files, while the layout is gone through in its order.
class Cursors {
 public:
  Cursors(std::vector<std::uint32_t> ranks, std::uint32_t world) : ranks_{std::move(ranks)}, slots_(world, none), at_(ranks_.size(), 0) {
    for (std::uint32_t slot = 0; slot < ranks_.size(); ++slot) slots_[ranks_[slot]] = slot;
  }
  void begin_kind() {
    for (std::uint64_t& at : at_) at = aligned_data(at);
  }
  /// In the data of a chosen file.
  [[nodiscard]] std::uint64_t at(std::uint32_t rank) const { return at_[slots_[rank]]; }
  void pass(const RankRuns& runs, std::uint64_t element_bytes) {
    const std::uint64_t bytes = runs.each * element_bytes;
    if (runs.count <= ranks_.size()) {
      for (std::uint64_t run = 0; run < runs.count; ++run)
        if (const std::uint32_t slot = slots_[runs.rank_of(run)]; slot != none) at_[slot] += bytes;
    } else {
      for (std::size_t slot = 0; slot < ranks_.size(); ++slot)
        if (runs.has(ranks_[slot])) at_[slot] += bytes;
    }
  }

 private:
  static constexpr std::uint32_t none = ~0u;
  std::vector<std::uint32_t> ranks_;
  std::vector<std::uint32_t> slots_;  // by rank
  std::vector<std::uint64_t> at_;     // by slot
};

/// Calls `visit(run, begin, end)` for what [begin, end) has of the runs.
template <class Visit>
void each_common(const RankRuns& runs, std::uint64_t begin, std::uint64_t end, const Visit& visit) {
  const std::uint64_t from = std::max(begin, runs.begin), until = std::min(end, runs.end());
  for (std::uint64_t at = from; at < until;) {
    const std::uint64_t run = (at - runs.begin) / runs.each;
    const std::uint64_t stop = std::min(until, runs.begin + (run + 1) * runs.each);
    visit(run, at, stop);
    at = stop;
  }
}

/// Calls `visit(runs, wanted)` for each pair of one unit that has elements in common, ascending, and `pass(runs)` after the last of each rule.
template <class Visit, class Pass>
void merge_unit(const UnitSplit& split, std::span<const Wanted> wanted, const Visit& visit, const Pass& pass) {
  std::size_t first = 0;
  for (const RankRuns& runs : split) {
    while (first < wanted.size() && wanted[first].end <= runs.begin) ++first;
    for (std::size_t i = first; i < wanted.size() && wanted[i].begin < runs.end(); ++i) visit(runs, wanted[i]);
    pass(runs);
  }
}

/// The part of `wanted`, which is sorted, that is of this kind and unit; `next` is where it begins, and then where it ends.
std::span<const Wanted> of_unit(std::span<const Wanted> wanted, std::size_t& next, std::uint32_t kind, std::uint32_t unit) {
  const std::size_t first = next;
  while (next < wanted.size() && wanted[next].kind == kind && wanted[next].unit == unit) ++next;
  return wanted.subspan(first, next - first);
}

}  // namespace

std::uint64_t run_count(const StateLayout& layout) {
  std::vector<std::uint64_t> counts;
  for (const UnitSplit& split : layout.splits) {
    counts.push_back(0);
    for (const RankRuns& runs : split) counts.back() += runs.count;
  }
  std::uint64_t all = 0;
  for (const auto& units : layout.split_of)
    for (const std::uint32_t number : units) all += counts[number];
  return all;
}

FoundLayout layout_of(const ModelTable& model, std::span<const FileRecord> files, std::span<const FragmentRecord> fragments) {
  FoundLayout found;
  SplitNumbers numbers;
  std::vector<std::uint64_t> at(files.size(), 0);  // in each file's data
  std::size_t next = 0;
  std::vector<Run> runs;
  const auto refused = [](std::string why) { return FoundLayout{{}, std::move(why)}; };
  for (std::uint32_t kind = 0; kind < model.kinds.size(); ++kind) {
    const std::uint64_t element_bytes = size_of(model.kinds[kind].dtype);
    for (std::uint64_t& offset : at) offset = aligned_data(offset);
    found.layout.split_of.emplace_back();
    for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
      const std::uint64_t elements = model.units[unit].elements;
      const auto where = [&] { return fmt::format("{} of {}", model.kinds[kind].name, model.units[unit].name); };
      std::uint64_t covered = 0;
      runs.clear();
      for (; next < fragments.size() && fragments[next].kind == kind && fragments[next].unit == unit; ++next) {
        const FragmentRecord& f = fragments[next];
        if (f.begin < covered) return refused(fmt::format("has elements from {} of {} twice", f.begin, where()));
        if (f.begin > covered) return refused(fmt::format("lacks elements {} to {} of {}", covered, f.begin, where()));
        if (f.end > elements) return refused(fmt::format("has elements beyond the {} of {}", elements, where()));
        if (f.file >= files.size()) return refused(fmt::format("places elements from {} of {} in no file", f.begin, where()));
        const FileRecord& file = files[f.file];
        const std::uint64_t bytes = (f.end - f.begin) * element_bytes, offset = file.header_bytes + at[f.file];
        if (offset > file.table_offset || bytes > file.table_offset - offset)
          return refused(fmt::format("places elements from {} of {} outside the data of file {}", f.begin, where(), f.file));
        if (f.offset != offset)
          return refused(
              fmt::format("places elements from {} of {} at byte {} of file {}, not at {}", f.begin, where(), f.offset, f.file, offset));
        at[f.file] += bytes;
        covered = f.end;
        if (!runs.empty() && runs.back().rank == f.file) runs.back().end = f.end;
        else runs.push_back({f.begin, f.end, f.file});
      }
      if (covered != elements) return refused(fmt::format("lacks elements {} to {} of {}", covered, elements, where()));
      found.layout.split_of.back().push_back(numbers.number_of(rules_of(runs), found.layout.splits));
    }
  }
  if (next != fragments.size()) return refused("has fragments out of order, or of a kind or unit that it does not list");
  return found;
}

std::string problem_of(const StateLayout& layout, const ModelTable& model, std::uint32_t world) {
  std::vector<std::uint64_t> elements, counts;
  for (const UnitSplit& split : layout.splits) {
    std::uint64_t covered = 0, count = 0;
    for (const RankRuns& runs : split) {
      std::uint64_t all = 0;
      const std::uint64_t last = runs.rank + (std::uint64_t{runs.count} - 1) * runs.step;
      if (runs.begin != covered || runs.each == 0 || runs.count == 0 || (runs.step == 0) != (runs.count == 1) || last >= world)
        return "has a rule that gives no rank of its world its elements";
      if (__builtin_mul_overflow(runs.each, std::uint64_t{runs.count}, &all) || __builtin_add_overflow(covered, all, &covered))
        return "has a rule with more elements than any unit";
      count += runs.count;
    }
    elements.push_back(covered);
    counts.push_back(count);
  }
  if (layout.split_of.size() != model.kinds.size())
    return fmt::format("has rules for {} kinds of {}", layout.split_of.size(), model.kinds.size());
  std::uint64_t all = 0;
  for (std::size_t kind = 0; kind < model.kinds.size(); ++kind) {
    const auto& units = layout.split_of[kind];
    if (units.size() != model.units.size())
      return fmt::format("has rules for {} of {} units of {}", units.size(), model.units.size(), model.kinds[kind].name);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const std::uint64_t covered = units[unit] < elements.size() ? elements[units[unit]] : ~std::uint64_t{0};
      if (covered != model.units[unit].elements)
        return fmt::format("has a rule for {} of {} that does not fit its {} elements", model.kinds[kind].name, model.units[unit].name,
                           model.units[unit].elements);
      all += counts[units[unit]];
      if (all > runs_max) return fmt::format("has more than {} runs of elements", runs_max);
    }
  }
  return {};
}

std::vector<Located> locate(const StateLayout& layout, const ModelTable& model, std::span<const FileRecord> files,
                            std::vector<Wanted> wanted) {
  std::erase_if(wanted, [](const Wanted& w) { return w.begin == w.end; });
  std::sort(wanted.begin(), wanted.end(),
            [](const Wanted& a, const Wanted& b) { return std::tie(a.kind, a.unit, a.begin) < std::tie(b.kind, b.unit, b.begin); });
  const auto each_unit = [&](const auto& visit) {
    std::size_t next = 0;
    for (std::uint32_t kind = 0; kind < model.kinds.size() && next < wanted.size(); ++kind)
      for (std::uint32_t unit = 0; unit < model.units.size() && next < wanted.size(); ++unit)
        visit(kind, unit, of_unit(wanted, next, kind, unit));
  };
  std::vector<bool> is_touched(files.size(), false);
  each_unit([&](std::uint32_t kind, std::uint32_t unit, std::span<const Wanted> here) {
    if (here.empty()) return;
    const auto touch = [&](const RankRuns& runs, const Wanted& w) {
      each_common(runs, w.begin, w.end, [&](std::uint64_t run, std::uint64_t, std::uint64_t) { is_touched[runs.rank_of(run)] = true; });
    };
    merge_unit(layout.split(kind, unit), here, touch, [](const RankRuns&) {});
  });
  std::vector<std::uint32_t> touched;
  for (std::uint32_t rank = 0; rank < files.size(); ++rank)
    if (is_touched[rank]) touched.push_back(rank);

  std::vector<Located> located;
  Cursors cursors{std::move(touched), static_cast<std::uint32_t>(files.size())};
  std::uint32_t kind_before = 0;
  each_unit([&](std::uint32_t kind, std::uint32_t unit, std::span<const Wanted> here) {
    if (kind != std::exchange(kind_before, kind)) cursors.begin_kind();
    const std::uint64_t element_bytes = size_of(model.kinds[kind].dtype);
    const auto place = [&](const RankRuns& runs, const Wanted& w) {
      each_common(runs, w.begin, w.end, [&](std::uint64_t run, std::uint64_t begin, std::uint64_t end) {
        const std::uint32_t file = runs.rank_of(run);
        const std::uint64_t into_run = begin - runs.begin - run * runs.each;
        located.push_back(
            {{kind, unit, begin, end, w.index}, file, files[file].header_bytes + cursors.at(file) + into_run * element_bytes});
      });
    };
    merge_unit(layout.split(kind, unit), here, place, [&](const RankRuns& runs) { cursors.pass(runs, element_bytes); });
  });
  return located;
}

}  // namespace elrun::inline v0
