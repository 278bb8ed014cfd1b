#include "kernels/cuda/granule.cuh"
#include "kernels/fold.hpp"
#include "kernels/reduce.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

/// Four elements as they were loaded: of bf16 only the first two words.
struct Raw {
  uint4 words;
  __device__ float4 value(bool is_bf16) const {
    if (is_bf16) return to_float(first_half(words));
    return {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)};
  }
};

__device__ std::uint64_t place_of(const ReduceOperand& operand, const ReducePiece& piece) {
  return operand.whole ? piece.whole : piece.part;
}

__device__ Raw load_four(const ReduceOperand& operand, std::uint64_t at) {
  if (operand.bf16) {
    const bf16* const from = static_cast<const bf16*>(operand.base) + at;
    if (!on_border(from, 8)) return {{from[0].bits | unsigned{from[1].bits} << 16, from[2].bits | unsigned{from[3].bits} << 16, 0, 0}};
    const auto words = load_wide<uint2>(from);
    return {{words.x, words.y, 0, 0}};
  }
  const auto* const from = static_cast<const unsigned*>(operand.base) + at;
  if (!on_border(from, 16)) return {{from[0], from[1], from[2], from[3]}};
  return {load_wide<uint4>(from)};
}

__device__ float load_one(const ReduceOperand& operand, std::uint64_t at) {
  return operand.bf16 ? to_float(static_cast<const bf16*>(operand.base)[at]) : static_cast<const float*>(operand.base)[at];
}

__device__ void store_four(float* to, float4 x) {
  if (on_border(to, 16)) store_wide(to, x);
  else to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

__device__ float folded(float left, float right) { return FoldFunctor{}(left, right); }
__device__ float4 folded(float4 left, float4 right) {
  return {folded(left.x, right.x), folded(left.y, right.y), folded(left.z, right.z), folded(left.w, right.w)};
}

/// A stack in registers: what is on top is always the first, since an index that is not known to the compiler would move it to memory.
template <class T, unsigned depth>
class Stack {
 public:
  __device__ void push(const T& x) {
#pragma unroll
    for (unsigned d = depth - 1; d > 0; --d) value_[d] = value_[d - 1];
    value_[0] = x;
  }
  __device__ void add() {
    value_[0] = folded(value_[1], value_[0]);
#pragma unroll
    for (unsigned d = 1; d + 1 < depth; ++d) value_[d] = value_[d + 1];
  }
  __device__ const T& top() const { return value_[0]; }

 private:
  T value_[depth] = {};
};

/// The roots of `rows` rows of a whole granule, for this thread's four elements of each. `ahead` operands are loaded before the first is used.
template <unsigned depth, unsigned rows, unsigned ahead>
__device__ void roots_of(const ReduceTable& table, const ReducePiece& piece, std::uint64_t at, Stack<float4, depth> (&stack)[rows]) {
  for (std::uint32_t first = 0; first < table.operand_count; first += ahead) {
    ReduceOperand operand[ahead];
    Raw loaded[ahead][rows];
#pragma unroll
    for (unsigned k = 0; k < ahead; ++k) {
      if (first + k >= table.operand_count) break;
      operand[k] = table.operands[first + k];
      const std::uint64_t place = place_of(operand[k], piece) + at;
#pragma unroll
      for (unsigned r = 0; r < rows; ++r) loaded[k][r] = load_four(operand[k], place + r * granule_row);
    }
#pragma unroll
    for (unsigned k = 0; k < ahead; ++k) {
      if (first + k >= table.operand_count) break;
#pragma unroll
      for (unsigned r = 0; r < rows; ++r) stack[r].push(loaded[k][r].value(operand[k].bf16));
      for (std::uint32_t a = 0; a < operand[k].additions; ++a)
#pragma unroll
        for (unsigned r = 0; r < rows; ++r) stack[r].add();
    }
  }
}

template <unsigned depth>
__device__ float root_of(const ReduceTable& table, const ReducePiece& piece, std::uint64_t at) {
  Stack<float, depth> stack;
  for (std::uint32_t o = 0; o < table.operand_count; ++o) {
    const ReduceOperand operand = table.operands[o];
    stack.push(load_one(operand, place_of(operand, piece) + at));
    for (std::uint32_t a = 0; a < operand.additions; ++a) stack.add();
  }
  return stack.top();
}

/// Whether the one operand is the result: what is there stays.
__device__ bool is_done(const ReduceTable& table, const float* result) {
  if (table.operand_count != 1) return false;
  const ReduceOperand only = table.operands[0];
  return only.base == result && only.whole && !only.bf16;
}

/// A warp per granule.
template <unsigned depth, unsigned rows, unsigned ahead>
__global__ void __launch_bounds__(block_threads) reduce_kernel(ReduceTable table, float* result, float* sums) {
  const unsigned lane = threadIdx.x % warp_threads;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * (block_threads / warp_threads);
  const bool stores = !is_done(table, result);
  for (std::uint64_t tile = (std::uint64_t{blockIdx.x} * block_threads + threadIdx.x) / warp_threads; tile < table.tiles; tile += stride) {
    const ReducePiece piece = run_of_tile(table.pieces, table.piece_count, tile);
    const std::uint64_t begin = (tile - piece.first_tile) * granule;
    float* const to = result + piece.whole + begin;
    float total;
    if (piece.size - begin >= granule) {
      RowSquares squares;
      for (std::uint64_t i = lane * four; i < granule; i += rows * granule_row) {
        Stack<float4, depth> stack[rows];
        roots_of<depth, rows, ahead>(table, piece, begin + i, stack);
#pragma unroll
        for (unsigned r = 0; r < rows; ++r) {
          if (stores) store_four(to + i + r * granule_row, stack[r].top());
          squares.add(stack[r].top());
        }
      }
      total = squares.total();
    } else {
      LaneSquares squares;
      for (std::uint64_t i = lane; i < piece.size - begin; i += warp_threads) {
        const float root = root_of<depth>(table, piece, begin + i);
        if (stores) to[i] = root;
        squares.add(root);
      }
      total = squares.total();
    }
    if (sums != nullptr && lane == 0) sums[tile] = total;
  }
}

template <unsigned depth, unsigned rows, unsigned ahead>
void launch_reduce(const ReduceTable& table, float* result, float* sums, Stream stream) {
  static_assert(granule / granule_row % rows == 0);
  constexpr auto* kernel = reduce_kernel<depth, rows, ahead>;
  launch<kernel>(grid_of<kernel>(blocks_of(table.tiles * warp_threads)), block_threads, 0, stream_of(stream), table, result, sums);
}

}  // namespace

void reduce_async(const ReduceTable& table, float* result, float* sums, Stream stream) {
  ELRUN_ASSERT(table.depth <= reduce_depth_max);
  if (table.tiles == 0) return;
  // The deeper the stack, the more registers it takes, and the fewer are left for what is loaded ahead.
  if (table.depth <= 4) launch_reduce<4, 2, 2>(table, result, sums, stream);
  else if (table.depth <= 8) launch_reduce<8, 1, 4>(table, result, sums, stream);
  else launch_reduce<reduce_depth_max, 1, 2>(table, result, sums, stream);
}

}  // namespace elrun::inline v0
