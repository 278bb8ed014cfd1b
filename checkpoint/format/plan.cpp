#include "checkpoint/format/plan.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

std::size_t kind_index(const ModelTable& model, const std::string& name) {
  std::size_t k = 0;
  while (k < model.kinds.size() && model.kinds[k].name != name) ++k;
  return k;
}

}  // namespace

std::vector<std::string> problems(const ModelTable& model, std::span<const Fragment> fragments) {
  std::vector<std::string> all;
  std::vector<std::tuple<std::size_t, std::uint64_t, std::uint64_t, std::uint64_t>> ranges;
  for (const Fragment& f : fragments) {
    const std::size_t kind = kind_index(model, f.kind);
    if (kind == model.kinds.size()) {
      all.push_back(fmt::format("a fragment is of kind {}, which the model does not have", f.kind));
    } else if (f.unit >= model.units.size()) {
      all.push_back(fmt::format("a fragment of {} is of unit {}, but there are {} units", f.kind, f.unit, model.units.size()));
    } else if (f.begin > f.end || f.end > model.units[f.unit].elements) {
      all.push_back(fmt::format("a fragment of {} of {} is [{}, {}), but the unit has {} elements", f.kind, model.units[f.unit].name,
                                f.begin, f.end, model.units[f.unit].elements));
    } else if (f.bytes.size() != (f.end - f.begin) * size_of(model.kinds[kind].dtype)) {
      all.push_back(fmt::format("a fragment of {} of {} has {} elements in {} bytes of memory", f.kind, model.units[f.unit].name,
                                f.end - f.begin, f.bytes.size()));
    } else if (f.begin != f.end) {
      ranges.emplace_back(kind, f.unit, f.begin, f.end);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const auto& [kind, unit, begin, end] = ranges[i];
    const auto& [kind_before, unit_before, begin_before, end_before] = ranges[i - 1];
    if (kind == kind_before && unit == unit_before && begin < end_before)
      all.push_back(fmt::format("two fragments of {} of {} overlap at element {}", model.kinds[kind].name, model.units[unit].name, begin));
  }
  return all;
}

Result<std::vector<ReadExtent>> plan_reads(const Manifest& manifest, std::span<const Fragment> wanted) {
  if (const auto wrong = problems(manifest.model, wanted); !wrong.empty()) return invalid(wrong);
  std::vector<Wanted> ranges;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    ranges.push_back({static_cast<std::uint32_t>(kind_index(manifest.model, wanted[i].kind)), static_cast<std::uint32_t>(wanted[i].unit),
                      wanted[i].begin, wanted[i].end, i});
  std::vector<ReadExtent> reads;
  for (const Located& found : locate(manifest.layout, manifest.model, manifest.files, std::move(ranges))) {
    const auto& [kind, unit, begin, end, index] = found.part;
    const std::uint64_t size = size_of(manifest.model.kinds[kind].dtype), bytes = (end - begin) * size;
    const FileRecord& file = manifest.files[found.file];
    if (found.offset > file.table_offset || bytes > file.table_offset - found.offset)
      return corrupt(fmt::format("the manifest of {} places elements {} to {} of {} of {} behind the data of {}", to_string(manifest.id),
                                 begin, end, manifest.model.kinds[kind].name, manifest.model.units[unit].name, file.name));
    reads.push_back({found.file, found.offset, bytes, index, (begin - wanted[index].begin) * size});
  }
  std::sort(reads.begin(), reads.end(),
            [](const ReadExtent& a, const ReadExtent& b) { return std::tie(a.file, a.offset) < std::tie(b.file, b.offset); });
  return reads;
}

std::vector<FragmentRecord> fragments_of(const Manifest& manifest) {
  std::vector<Wanted> all;
  for (std::uint32_t kind = 0; kind < manifest.model.kinds.size(); ++kind)
    for (std::uint32_t unit = 0; unit < manifest.model.units.size(); ++unit)
      all.push_back({kind, unit, 0, manifest.model.units[unit].elements, 0});
  std::vector<FragmentRecord> fragments;
  for (const Located& found : locate(manifest.layout, manifest.model, manifest.files, std::move(all)))
    fragments.push_back({found.part.kind, found.part.unit, found.file, found.part.begin, found.part.end, found.offset});
  return fragments;
}

std::pair<std::uint64_t, std::uint64_t> slice_of(std::uint64_t begin, std::uint64_t end, std::uint32_t rank, std::uint32_t world) {
  const std::uint64_t granules = (end - begin + slice_granule - 1) / slice_granule;
  const std::uint64_t each = (granules + world - 1) / world * slice_granule;
  const auto cut = [&](std::uint64_t r) { return begin + std::min(end - begin, r * each); };
  return {cut(rank), cut(rank + std::uint64_t{1})};
}

}  // namespace elrun::inline v0
