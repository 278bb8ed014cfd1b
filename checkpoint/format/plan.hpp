#pragma once
/// \file Core: which bytes of which file go where. Saves and loads of any two worlds meet in the flat space of a unit,
/// so that resharding is an intersection of intervals. Which rank reads them for the others: read_share.hpp.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

/// Bytes [offset, offset + bytes) of a file belong at `at` in the memory of a fragment.
struct ReadExtent {
  std::uint32_t file = 0;
  std::uint64_t offset = 0, bytes = 0;
  std::size_t fragment = 0;
  std::uint64_t at = 0;
  friend bool operator==(const ReadExtent&, const ReadExtent&) = default;
};

/// What a rank must read to fill its fragments, by file and offset. Fails with all wrong fragments at once.
[[nodiscard]] Result<std::vector<ReadExtent>> plan_reads(const Manifest& manifest, std::span<const Fragment> wanted);

/// Where all of the state lies, by kind, unit and begin: one for each run of elements in one file. As many as units times ranks; a restore does not need it.
[[nodiscard]] std::vector<FragmentRecord> fragments_of(const Manifest& manifest);

/// The part of replicated elements [begin, end) that a rank writes: runs of whole granules, each element in one part.
constexpr std::uint64_t slice_granule = 1024;
[[nodiscard]] std::pair<std::uint64_t, std::uint64_t> slice_of(std::uint64_t begin, std::uint64_t end, std::uint32_t rank,
                                                               std::uint32_t world);

/// What is wrong with fragments, all at once: kinds, units, ranges, sizes, overlaps. Empty when nothing is.
[[nodiscard]] std::vector<std::string> problems(const ModelTable& model, std::span<const Fragment> fragments);

}  // namespace elrun::inline v0
