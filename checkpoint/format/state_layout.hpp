#pragma once
/// \file Core: which elements of the state lie in which rank's file, and where, as rules. Ranks and units that are alike share a rule, so a manifest
/// does not grow with ranks times units.
///
/// In a file lie, kind by kind and in each kind unit by unit, the elements that its rank wrote, in the order of the unit. Each kind of which
/// the file has elements begins at a multiple of `data_alignment` of its data. So the rules alone give every offset.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/model.hpp"

namespace elrun::inline v0 {

struct FileRecord;
struct FragmentRecord;

constexpr std::uint64_t data_alignment = 4096;
[[nodiscard]] constexpr std::uint64_t aligned_data(std::uint64_t offset) {
  return (offset + data_alignment - 1) / data_alignment * data_alignment;
}
constexpr std::uint64_t runs_max = 1u << 28;  ///< Over all kinds and units; a reader looks at each at most once.

/// `count` runs of `each` elements, one behind the other from element `begin` of the unit on. Run i is in the file of rank + i * step, so no file has
/// two of them.
struct RankRuns {
  std::uint64_t begin = 0, each = 0;
  std::uint32_t count = 1, rank = 0, step = 0;  ///< step is 0 for one run, and for one only.
  [[nodiscard]] std::uint64_t end() const { return begin + each * count; }
  [[nodiscard]] std::uint32_t rank_of(std::uint64_t run) const { return rank + static_cast<std::uint32_t>(run) * step; }
  [[nodiscard]] bool has(std::uint32_t of) const {
    return step == 0 ? of == rank : of >= rank && (of - rank) % step == 0 && (of - rank) / step < count;
  }
  friend bool operator==(const RankRuns&, const RankRuns&) = default;
};
/// How the elements of a unit are split over the files: all of them, ascending.
using UnitSplit = std::vector<RankRuns>;

struct StateLayout {
  std::vector<UnitSplit> splits;                     ///< Each once, in the order in which they are first used.
  std::vector<std::vector<std::uint32_t>> split_of;  ///< By kind and unit: which of `splits`.
  [[nodiscard]] const UnitSplit& split(std::size_t kind, std::size_t unit) const { return splits[split_of[kind][unit]]; }
  friend bool operator==(const StateLayout&, const StateLayout&) = default;
};

/// Runs of all kinds and units together.
[[nodiscard]] std::uint64_t run_count(const StateLayout& layout);

/// A layout, or why there is none.
struct FoundLayout {
  StateLayout layout;
  std::string problem{};  ///< "lacks elements 3 to 9 of param of embed"; empty: none.
};
/// The rules behind `fragments`, which are sorted by kind, unit and begin. They have to cover each kind of each unit once, and to lie where the rules say.
[[nodiscard]] FoundLayout layout_of(const ModelTable& model, std::span<const FileRecord> files, std::span<const FragmentRecord> fragments);

/// What keeps a layout from being one of this model in a world of so many ranks; empty: nothing. All later code relies on it.
[[nodiscard]] std::string problem_of(const StateLayout& layout, const ModelTable& model, std::uint32_t world);

/// Elements [begin, end) of a kind of a unit that somebody asks for.
struct Wanted {
  std::uint32_t kind = 0, unit = 0;
  std::uint64_t begin = 0, end = 0;
  std::size_t index = 0;  ///< The asker's.
};
/// A part of it, in one file.
struct Located {
  Wanted part;
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  ///< In the file.
};
/// Where each part of `wanted` lies, by kind, unit and element. The ranges are within their units and do not overlap. Looks at each rule of the layout once per
/// file with wanted elements at most, and at each run once at most; takes memory for these files and for the answer alone. Whether a file has data there is not looked at.
[[nodiscard]] std::vector<Located> locate(const StateLayout& layout, const ModelTable& model, std::span<const FileRecord> files,
                                          std::vector<Wanted> wanted);

}  // namespace elrun::inline v0
