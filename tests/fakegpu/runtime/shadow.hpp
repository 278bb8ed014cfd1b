#pragma once
/// \file What is remembered of the last accesses to each piece of an allocation.
///
/// A piece is as small as the smallest access seen in its 8 KiB: four bytes at first, then two, then one. So neighbours of two bytes
/// that two threads write are two pieces, and arrays of floats cost no more than they need.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fakegpu {

/// A point in the history of the process: grows with each operation, block and barrier (history.hpp). 0: never.
using Stamp = std::uint32_t;

/// Which thread of a block made an access, or several of them. Below 1024: that thread.
using ThreadMark = std::uint16_t;
inline constexpr ThreadMark several_of_warp = 0x400;  ///< Plus the warp's number.
inline constexpr ThreadMark several_of_block = 0x800;
inline constexpr ThreadMark several_of_grid = 0x801;
inline constexpr ThreadMark atomic_access = 0x802;
inline constexpr ThreadMark whole_operation = 0x803;     ///< A copy, a memset, an operation of another library.
inline constexpr ThreadMark several_operations = 0x804;  ///< Reads of streams that nothing orders; `read` is an index (ReaderSets).

/// The last write, and the reads since then.
struct Cell {
  Stamp written = 0, read = 0;
  ThreadMark writer = 0, reader = 0;
};

class Shadow {
 public:
  struct Chunk {
    unsigned shift = 2;  ///< A cell stands for 1 << shift bytes.
    std::vector<Cell> cells;
  };
  static constexpr std::size_t chunk_bytes = 8 << 10;

  /// The cells of the chunk around `offset`, fine enough for an access of `bytes` at `offset` within that chunk.
  Chunk& fine_enough(std::size_t offset, std::size_t bytes) {
    const std::size_t index = offset / chunk_bytes;
    if (index < chunks_.size() && chunks_[index] != nullptr) [[likely]] {
      Chunk& chunk = *chunks_[index];
      if (((offset | bytes) & ((std::size_t{1} << chunk.shift) - 1)) == 0) [[likely]]
        return chunk;
    }
    return made_fine_enough(offset, bytes);
  }
  [[nodiscard]] const std::vector<std::unique_ptr<Chunk>>& chunks() const { return chunks_; }

 private:
  [[gnu::noinline]] Chunk& made_fine_enough(std::size_t offset, std::size_t bytes) {
    const std::size_t index = offset / chunk_bytes;
    if (index >= chunks_.size()) chunks_.resize(index + 1);
    if (chunks_[index] == nullptr) {
      chunks_[index] = std::make_unique<Chunk>();
      chunks_[index]->cells.resize(chunk_bytes >> 2);
    }
    Chunk& chunk = *chunks_[index];
    while (((offset | bytes) & ((std::size_t{1} << chunk.shift) - 1)) != 0) halve(chunk);
    return chunk;
  }
  static void halve(Chunk& chunk) {
    std::vector<Cell> finer(chunk.cells.size() * 2);
    for (std::size_t i = 0; i < finer.size(); ++i) finer[i] = chunk.cells[i / 2];
    chunk.cells = std::move(finer);
    --chunk.shift;
  }
  std::vector<std::unique_ptr<Chunk>> chunks_;
};

}  // namespace fakegpu
