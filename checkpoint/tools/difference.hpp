#pragma once
/// \file Core: how two tensors differ, from their bytes as they come.

#include <cstdint>
#include <string>
#include <vector>

#include <elrun/tensor.hpp>

#include "checkpoint/format/model.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// A tensor of a checkpoint: a run of elements of one kind of one unit.
struct StoredTensor {
  std::string name;  ///< `<kind>/<unit>/<tensor>`; `<kind>/<unit>` for a unit that says nothing of tensors.
  std::string kind;
  std::uint64_t unit = 0, begin = 0;  ///< Index of the unit; first element.
  DType dtype = DType::f32;           ///< As stored.
  Shape shape;
  [[nodiscard]] std::uint64_t elements() const { return element_count(shape); }
};
/// All tensors of a model, in the order in which they are stored. What lies between them is padding, and no part of the state.
[[nodiscard]] std::vector<StoredTensor> tensors_of(const ModelTable& model);

/// What two runs of elements came to. Elements are equal if their bits are.
struct Difference {
  std::uint64_t elements = 0;   ///< Compared.
  std::uint64_t different = 0;  ///< Of these.
  std::uint64_t first = 0;      ///< The first that differs.
  double first_a = 0, first_b = 0;
  double largest = 0;             ///< Absolute difference, of those whose difference is a number.
  std::uint64_t not_numbers = 0;  ///< Different elements of which one is infinite or not a number.
  /// The next elements of both; equally many bytes.
  void add(DType type, ByteSpan a, ByteSpan b);
};

/// Two tensors of one name, or one that only one side has.
struct TensorDifference {
  enum class As : std::uint8_t { equal, different, only_in_a, only_in_b, other_shape };
  std::string name;
  As as = As::equal;
  DType dtype_a = DType::f32, dtype_b = DType::f32;
  Shape shape_a, shape_b;
  Difference difference{};
};

/// Pairs by name, in a's order; then what only b has. `a` and `b` are indices; -1: none.
struct TensorPair {
  std::ptrdiff_t a = -1, b = -1;
};
[[nodiscard]] std::vector<TensorPair> pairs(const std::vector<StoredTensor>& a, const std::vector<StoredTensor>& b);

/// `[3, 17]`: the place of an element in a tensor of this shape.
[[nodiscard]] std::string index_text(std::uint64_t element, const Shape& shape);
/// `[64, 32]`; `[]` for a single number.
[[nodiscard]] std::string shape_text(const Shape& shape);

}  // namespace elrun::inline v0
