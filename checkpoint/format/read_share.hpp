#pragma once
/// \file Core: who reads what when all ranks of a world load a checkpoint together. Each block is read by one rank, one of those that need some of it,
/// and what others need is passed on to them. So all ranks together read the state once, whatever the world, and what one rank alone
/// needs travels over no network.
///
/// The ranks that need a block are its **askers**. Blocks with the same askers are cut into equal runs, one for each of these ranks. A rank sees all
/// blocks of which it is an asker, so it works out its own part of the plan from what all ranks need, and they agree.

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/format/plan.hpp"

namespace elrun::inline v0 {

/// Elements that a rank needs, by kind, unit and begin, without overlaps. Host state is everybody's, and not among them.
using Needs = std::vector<Wanted>;
/// `index` is that of the fragment. Fails with all wrong fragments at once.
[[nodiscard]] Result<Needs> needs_of(const ModelTable& model, std::span<const Fragment> fragments);
/// For the other ranks, without the indices.
[[nodiscard]] ByteVector encode(const Needs& needs);
[[nodiscard]] Result<Needs> decode_needs(ByteSpan bytes, const ModelTable& model);

/// Bytes [offset, offset + bytes) of a file.
struct FileRange {
  std::uint32_t file = 0;
  std::uint64_t offset = 0, bytes = 0;
  [[nodiscard]] std::uint64_t end() const { return offset + bytes; }
  friend auto operator<=>(const FileRange&, const FileRange&) = default;
};

/// What one rank does for a load. Ranges are of whole blocks, ascending and apart from each other.
struct ReadShare {
  std::vector<FileRange> alone;   ///< It reads, and nobody else needs any of it.
  std::vector<FileRange> shared;  ///< It reads, and others need some of it, too.
  struct Passed {
    FileRange part;          ///< Of `shared`.
    std::size_t askers = 0;  ///< In `askers`: who needs it, perhaps this rank among them.
  };
  std::vector<Passed> passed;                      ///< Ascending.
  std::vector<std::vector<std::uint32_t>> askers;  ///< Ranks, ascending.
};

/// A run of blocks is not cut into smaller ones for more readers: each reader opens the file.
constexpr std::uint64_t read_run_bytes_min = 1 << 20;

/// Of rank `rank` of as many as there are needs. Fails with `corrupt` where the manifest places any of it behind the data of its file.
[[nodiscard]] Result<ReadShare> share_of(const Manifest& manifest, std::span<const Needs> by_rank, std::uint32_t rank);
/// What each rank reads, alone and shared: as `share_of` says for each of them, with one look at all blocks.
[[nodiscard]] Result<std::vector<std::vector<FileRange>>> all_reads(const Manifest& manifest, std::span<const Needs> by_rank);

}  // namespace elrun::inline v0
