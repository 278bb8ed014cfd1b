#pragma once
/// \file The canonical reduction: what is left of a tree of additions (lib/job/gradients/tree.hpp) once all its operands are here, for each element in one
/// pass. Operands are leaves in fp32 or bf16, and sums. They come in the order in which the tree has them from left to right; after each of them follow
/// the additions that it completes, left = left + right: a stack, whose depth is the tree's.

#include <cstdint>
#include <span>

#include <elrun/device.hpp>
#include <elrun/tensor.hpp>

#include "kernels/granule.hpp"
#include "kernels/tiles.hpp"

namespace elrun::inline v0 {

struct ReduceOperand {
  void* base = nullptr;
  std::uint32_t additions = 0;  ///< That follow it, of the two values on top of the stack.
  bool bf16 = false;            ///< Its elements' type; fp32 else.
  bool whole = false;           ///< It begins where the whole begins; else where this rank's part of it does.
};

/// Elements that lie side by side in each operand.
struct ReducePiece {
  std::uint64_t whole = 0;  ///< Where it begins in arrays that hold the whole, the result among them.
  std::uint64_t part = 0;   ///< In arrays that hold this rank's part.
  std::uint64_t size = 0;
  std::uint64_t first_tile = 0;  ///< By `count_tiles`.
};

/// Both tables lie in the memory of the operands. They are written once; what the operands hold changes.
struct ReduceTable {
  const ReduceOperand* operands = nullptr;
  const ReducePiece* pieces = nullptr;
  std::uint32_t operand_count = 0, piece_count = 0;
  std::uint64_t tiles = 0;  ///< Granules of all pieces: by `count_tiles`.
  std::uint32_t depth = 0;  ///< By `depth_of`.
};

inline constexpr std::uint32_t reduce_depth_max = 24;  ///< Of a tree with eight million operands.

/// The largest number of values on the stack. Asserts that the additions leave one.
[[nodiscard]] std::uint32_t depth_of(std::span<const ReduceOperand> operands);
/// Says in each piece which its first tile, a granule, is; returns how many there are. No piece is empty.
[[nodiscard]] std::uint64_t count_tiles(std::span<ReducePiece> pieces);

/// The sums go to `result`, which holds the whole and may be an operand. What fp32 operands hold in the pieces is not specified afterwards. `sums`, where
/// it is not null, receives the sum of squares of each granule of the result, in the order of the pieces, as `sums_of_squares` gives it.
void reduce(const ReduceTable& table, float* result, float* sums, Isa isa = isa_of_this_machine());
/// The operands are only read, except for the result.
void reduce_async(const ReduceTable& table, float* result, float* sums, Stream stream);

}  // namespace elrun::inline v0
