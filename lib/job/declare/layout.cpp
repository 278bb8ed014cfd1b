#include "lib/job/declare/layout.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/job/state/update.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t model_elements_max = std::uint64_t{1} << 48;  // sums of sizes below it cannot overflow

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

/// element_count, but nothing when it is beyond the limit.
std::uint64_t bounded_count(const Shape& shape) {
  std::uint64_t n = 1;
  for (const std::uint64_t extent : shape) {
    if (extent != 0 && n > model_elements_max / extent) return model_elements_max + 1;
    n *= extent;
  }
  return n;
}

}  // namespace

std::vector<std::string> problems(const std::vector<UnitSpec>& units) {
  std::vector<std::string> out;
  std::set<std::string_view> unit_names;
  std::uint64_t total = 0;
  if (units.empty()) out.push_back("no unit is declared: call job.unit(...).tensor<float>(...) before seal()");
  for (const UnitSpec& unit : units) {
    if (unit.name.empty()) out.push_back("a unit has an empty name");
    if (!unit_names.insert(unit.name).second) out.push_back(fmt::format("unit '{}' is declared twice", unit.name));
    if (unit.tensors.empty()) out.push_back(fmt::format("unit '{}' has no tensor", unit.name));
    std::set<std::string_view> names;
    std::optional<DType> trains;
    for (const TensorSpec& t : unit.tensors) {
      const auto which = fmt::format("tensor '{}' of unit '{}'", t.name, unit.name);
      if (t.name.empty()) out.push_back(fmt::format("a tensor of unit '{}' has an empty name", unit.name));
      if (!names.insert(t.name).second) out.push_back(which + " is declared twice");
      if (t.dtype != DType::f32 && t.dtype != DType::bf16) out.push_back(which + " is neither fp32 nor bf16");
      if (t.dtype == DType::bf16 && t.options.frozen) out.push_back(which + " is frozen and bf16: declare what is frozen as float");
      if (!t.options.frozen && t.dtype != trains.value_or(t.dtype))
        out.push_back(fmt::format("unit '{}' has tensors of float and of bf16 that train: give each kind a unit of its own", unit.name));
      if (!t.options.frozen) trains = t.dtype;
      const std::uint64_t n = bounded_count(t.shape);
      if (n == 0) out.push_back(which + " has no elements");
      if (t.options.uses == 0) out.push_back(which + " has uses = 0: one use_grad scope per slot is the least");
      total = std::min(total + n, model_elements_max + 1);
    }
  }
  if (total > model_elements_max) out.push_back("the model has more than 2^48 elements");
  return out;
}

Layout lay_out(const std::vector<UnitSpec>& units) {
  constexpr std::uint64_t alignment = tensor_alignment / sizeof(float);
  Layout out;
  for (const UnitSpec& spec : units) {
    UnitLayout unit;
    unit.begin = out.parameters;
    unit.gradient_begin = out.gradients;
    unit.offsets.resize(spec.tensors.size());
    std::uint64_t at = 0;
    const auto place = [&](bool frozen) {
      for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
        const TensorSpec& t = spec.tensors[i];
        if (t.options.frozen != frozen) continue;
        unit.offsets[i] = at;
        unit.used = at + element_count(t.shape);
        at = round_up(unit.used, alignment);
        unit.uses = std::max(unit.uses, t.options.uses);
        if (frozen) continue;
        unit.weights = t.dtype;
        auto& runs = unit.decay_runs;
        if (runs.empty() || runs.back().decay != t.options.decay) runs.push_back({unit.offsets[i], at, t.options.decay});
        runs.back().end = at;
      }
    };
    place(false);
    at = unit.trainable = round_up(at, granule);
    if (!unit.decay_runs.empty()) unit.decay_runs.back().end = at;
    place(true);
    unit.size = round_up(at, granule);
    out.parameters += unit.size;
    out.gradients += unit.trainable;
    out.units.push_back(std::move(unit));
  }
  return out;
}

LeafRange shard(std::uint64_t elements, Cut cut) {
  const std::uint64_t granules = elements / granule;
  const std::uint64_t each = (granules + cut.parts - 1) / cut.parts;
  ELRUN_ASSERT(cut.wrapped() == 0);
  const std::uint64_t begin = std::min(granules, each * cut.part);
  return {begin * granule, std::min(granules, begin + each * cut.count) * granule};
}

std::vector<LeafRange> runs(std::uint64_t elements, Cut cut) {
  std::vector<LeafRange> out;
  if (cut.wrapped() > 0) out.push_back(shard(elements, {cut.parts, 0, cut.wrapped()}));
  out.push_back(shard(elements, {cut.parts, cut.part, cut.count - cut.wrapped()}));
  std::erase_if(out, [](LeafRange run) { return run.begin == run.end; });
  return out;
}

std::uint64_t largest_part(const Layout& layout, Cut cut, DType weights) {
  std::uint64_t largest = 0;
  for (const UnitLayout& unit : layout.units) {
    std::uint64_t part = 0;
    if (unit.weights == weights)
      for (const LeafRange& run : runs(unit.trainable, cut)) part += run.end - run.begin;
    largest = std::max(largest, part);
  }
  return largest;
}

std::vector<Piece> pieces(const Layout& layout, Cut cut) {
  std::vector<Piece> out;
  std::uint64_t place = 0;
  for (std::uint32_t u = 0; u < layout.units.size(); ++u) {
    const UnitLayout& unit = layout.units[u];
    for (const LeafRange& run : runs(unit.trainable, cut)) {
      out.push_back({u, run.begin, run.end, unit.gradient_begin + run.begin, unit.begin + run.begin, place});
      place += run.end - run.begin;
    }
  }
  return out;
}

std::uint64_t elements(const std::vector<Piece>& shard) { return shard.empty() ? 0 : shard.back().place + shard.back().size(); }

std::vector<Common> common(const std::vector<Piece>& a, const std::vector<Piece>& b) {
  std::vector<Common> out;
  const auto cut_down = [](const Piece& p, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t skipped = begin - p.begin;
    return Piece{p.unit, begin, end, p.gradient + skipped, p.parameter + skipped, p.place + skipped};
  };
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const std::uint64_t begin = std::max(a[i].begin, b[k].begin), end = std::min(a[i].end, b[k].end);
    if (a[i].unit == b[k].unit && begin < end) out.push_back({cut_down(a[i], begin, end), cut_down(b[k], begin, end)});
    (a[i].gradient + a[i].size() <= b[k].gradient + b[k].size() ? i : k) += 1;
  }
  return out;
}

ModelTable model_table(const std::vector<UnitSpec>& units, const Layout& layout, Optimizer optimizer) {
  ModelTable out;
  for (std::size_t u = 0; u < units.size(); ++u) {
    UnitInfo info{units[u].name, layout.units[u].used, {}};
    for (std::size_t i = 0; i < units[u].tensors.size(); ++i) {
      const TensorSpec& t = units[u].tensors[i];
      info.tensors.push_back({t.name, DType::f32, t.shape, layout.units[u].offsets[i]});
    }
    std::sort(info.tensors.begin(), info.tensors.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
    out.units.push_back(std::move(info));
  }
  out.kinds = {{"param", DType::f32}};
  for (const std::string_view moment : moments_of(optimizer)) out.kinds.push_back({std::string{moment}, DType::f32});
  return out;
}

}  // namespace elrun::inline v0
