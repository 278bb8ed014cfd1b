#pragma once
/// \file Core: the names under which a shard shows its elements: boxes of the model's tensors. A run of elements of a unit's flat space is, tensor by tensor,
/// at most 2 * dimensions - 1 boxes, each of them a run itself. FORMAT.md has the names.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/model.hpp"

namespace elrun::inline v0 {

/// Indices [first, second) in each dimension.
using Box = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

/// Elements [begin, end) of a tensor, counted row by row, as boxes: each is one run of them, in this order. `begin < end`, within the tensor.
[[nodiscard]] std::vector<Box> boxes_of(const Shape& shape, std::uint64_t begin, std::uint64_t end);

/// A run of elements under its name, `<tensor>[3:5,0:100]`, or `<tensor>` for a whole one.
struct NamedRun {
  std::string name;  ///< Without the kind.
  Shape shape;
  std::uint64_t elements = 0;
  bool is_tensor = true;     ///< Otherwise elements of no tensor, such as those between two that are aligned.
  std::uint32_t tensor = 0;  ///< Index in UnitInfo::tensors.
};

/// The names of a model's tensors in shards: `<unit>.<tensor>`, each once in the model, and without `[`.
class TensorNames {
 public:
  /// `model` outlives this.
  explicit TensorNames(const ModelTable& model);
  [[nodiscard]] const std::string& name(std::size_t unit, std::size_t tensor) const { return names_[unit][tensor]; }
  /// Elements [begin, end) of a unit, in their order.
  [[nodiscard]] std::vector<NamedRun> cut(std::size_t unit, std::uint64_t begin, std::uint64_t end) const;

 private:
  const ModelTable* model_;
  std::vector<std::vector<std::string>> names_;
  std::vector<std::vector<std::uint32_t>> by_offset_;  // of each unit, its tensors
};

/// `[` and `%` as %5B and %25: what follows the first `[` of a name is a box.
[[nodiscard]] std::string without_bracket(const std::string& name);

}  // namespace elrun::inline v0
