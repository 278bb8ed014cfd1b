#pragma once
/// \file Folding the same elements of all ranks into one, in rank order. Pure.

#include <cstddef>
#include <span>

#include <elrun/process_group.hpp>
#include <elrun/result.hpp>
#include <elrun/tensor.hpp>

namespace elrun::inline v0 {

/// `out` = inputs[0] op inputs[1] op ..., element by element. bf16 is folded in float and rounded once. Sums of integers
/// wrap around. A NaN wins min and max. `avg` divides the sum by the number of inputs at the end; `out` may be one of the
/// inputs. All have `count` elements; alignment is not assumed.
void fold_ranks(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count, DType type, ReduceOp op);

/// Why this cannot be reduced (avg of integers).
[[nodiscard]] Result<void> check_reduction(DType type, ReduceOp op);

}  // namespace elrun::inline v0
