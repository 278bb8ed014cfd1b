#include "kernels/reduce.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/convert.hpp"
#include "kernels/fold.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t chunk_max = 16 * granule;  // so that what is added stays in the cache

/// A part of a value on the stack.
struct Value {
  float* sum = nullptr;  // null: a leaf in bf16, which nothing was added to
  const bf16* leaf = nullptr;
};

/// One chunk. `spare`: chunk_max floats for each value that can be on the stack, where there are leaves in bf16.
class Chunk {
 public:
  Chunk(std::uint64_t count, std::span<float> spare, Isa isa) : count_{count}, spare_{spare}, isa_{isa} {}

  void take(const ReduceOperand& operand, const ReducePiece& piece, std::uint64_t begin) {
    const std::uint64_t at = (operand.whole ? piece.whole : piece.part) + begin;
    if (operand.bf16) stack_[top_++] = {nullptr, static_cast<const bf16*>(operand.base) + at};
    else stack_[top_++] = {static_cast<float*>(operand.base) + at, nullptr};
    for (std::uint32_t a = 0; a < operand.additions; ++a) add();
  }
  void root_to(float* result) {
    const Value& root = stack_[0];
    if (root.sum == nullptr) to_float({root.leaf, count_}, {result, count_}, isa_);
    else if (root.sum != result) std::memcpy(result, root.sum, count_ * sizeof(float));
  }

 private:
  void add() {
    const Value right = stack_[--top_];
    Value& left = stack_[top_ - 1];
    if (left.sum == nullptr) {
      float* const widened = spare_.data() + (top_ - 1) * chunk_max;
      to_float({left.leaf, count_}, {widened, count_}, isa_);
      left = {widened, nullptr};
    }
    if (right.sum == nullptr) add_into(std::span{left.sum, count_}, std::span{right.leaf, count_}, isa_);
    else add_into(std::span{left.sum, count_}, std::span<const float>{right.sum, count_}, isa_);
  }
  std::uint64_t count_;
  std::span<float> spare_;
  Isa isa_;
  Value stack_[reduce_depth_max];
  std::uint32_t top_ = 0;
};

}  // namespace

std::uint32_t depth_of(std::span<const ReduceOperand> operands) {
  std::uint32_t depth = 0, most = 0;
  for (const ReduceOperand& operand : operands) {
    most = std::max(most, ++depth);
    ELRUN_ASSERT(operand.additions < depth);
    depth -= operand.additions;
  }
  ELRUN_ASSERT(depth == 1 && most <= reduce_depth_max);
  return most;
}

std::uint64_t count_tiles(std::span<ReducePiece> pieces) {
  std::uint64_t tiles = 0;
  for (ReducePiece& piece : pieces) {
    ELRUN_ASSERT(piece.size > 0);
    piece.first_tile = tiles;
    tiles += tile_count(piece.size, granule);
  }
  return tiles;
}

void reduce(const ReduceTable& table, float* result, float* sums, Isa isa) {
  const std::span operands{table.operands, table.operand_count};
  std::vector<float> spare(std::ranges::any_of(operands, &ReduceOperand::bf16) ? table.depth * chunk_max : 0);
  for (const ReducePiece& piece : std::span{table.pieces, table.piece_count})
    for (std::uint64_t begin = 0; begin < piece.size; begin += chunk_max) {
      const std::uint64_t count = std::min(chunk_max, piece.size - begin);
      Chunk chunk{count, spare, isa};
      for (const ReduceOperand& operand : operands) chunk.take(operand, piece, begin);
      float* const to = result + piece.whole + begin;
      chunk.root_to(to);
      if (sums != nullptr) sums_of_squares({to, count}, {sums + piece.first_tile + begin / granule, granule_count(count)}, isa);
    }
}

}  // namespace elrun::inline v0
