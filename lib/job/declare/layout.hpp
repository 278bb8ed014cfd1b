#pragma once
/// \file Where every parameter lives, whatever the world: units are flat, and so is the model.
///
/// In a unit the tensors that train come first, each on a border of 256 bytes, filled up to whole granules; the frozen
/// ones follow. Offsets depend on the declarations alone, so views stay valid over every resize. Parameters, the state
/// hash and checkpoints count elements of the whole model's flat space; gradients and optimizer states have one of
/// their own, without what is frozen. A rank's shard is one run of granules of each unit, or two.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/job.hpp>

#include "checkpoint/format/model.hpp"
#include "kernels/granule.hpp"
#include "lib/job/gradients/tree.hpp"

namespace elrun::inline v0 {

constexpr std::uint64_t tensor_alignment = 256;  ///< bytes

/// A parameter as it was declared.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  TensorOptions options;
};
struct UnitSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
};

struct UnitLayout {
  std::uint64_t begin = 0;             ///< In the parameters' space.
  std::uint64_t gradient_begin = 0;    ///< In the gradients' space.
  std::uint64_t trainable = 0;         ///< Elements that train, whole granules.
  std::uint64_t used = 0;              ///< Elements up to the end of the last tensor.
  std::uint64_t size = 0;              ///< Elements, whole granules.
  std::uint32_t uses = 1;              ///< `use_grad` scopes per slot.
  DType weights = DType::f32;          ///< What the program sees of what trains; masters are f32.
  std::vector<std::uint64_t> offsets;  ///< Of each tensor, in the order of declaration.
  /// Runs of [0, trainable) in which weight decay is on or off for all elements.
  struct DecayRun {
    std::uint64_t begin = 0, end = 0;
    bool decay = false;
    friend bool operator==(const DecayRun&, const DecayRun&) = default;
  };
  std::vector<DecayRun> decay_runs;
};

struct Layout {
  std::vector<UnitLayout> units;
  std::uint64_t parameters = 0;  ///< Elements of the parameters' space.
  std::uint64_t gradients = 0;   ///< Elements of the gradients' space.
  [[nodiscard]] std::uint64_t granules() const { return gradients / granule; }
};

/// Everything that is wrong with the declarations, in sentences.
[[nodiscard]] std::vector<std::string> problems(const std::vector<UnitSpec>& units);
[[nodiscard]] Layout lay_out(const std::vector<UnitSpec>& units);

constexpr std::uint32_t parts_held_max = 2;  ///< Of a shard.
/// A shard: of `parts` equal parts, `count` from `part` on. Behind the last part the first one follows.
struct Cut {
  std::uint32_t parts = 1, part = 0, count = 1;
  /// Parts from the first one on, beyond the last.
  [[nodiscard]] constexpr std::uint32_t wrapped() const { return part + count > parts ? part + count - parts : 0; }
  friend constexpr bool operator==(const Cut&, const Cut&) = default;
};
/// Elements [begin, end) of a shard of a flat space of whole granules: k = ceil(granules / parts) granules in each part. Of a shard that does not wrap.
[[nodiscard]] LeafRange shard(std::uint64_t elements, Cut cut);
/// Of any shard: its runs in ascending order, at most two. None is empty.
[[nodiscard]] std::vector<LeafRange> runs(std::uint64_t elements, Cut cut);

/// One run of one unit's trainable elements.
struct Piece {
  std::uint32_t unit = 0;
  std::uint64_t begin = 0, end = 0;  ///< In the unit.
  std::uint64_t gradient = 0;        ///< Where it begins in the gradients' space ...
  std::uint64_t parameter = 0;       ///< ... in the parameters' ...
  std::uint64_t place = 0;           ///< ... and in memory that holds this rank's shard alone.
  [[nodiscard]] std::uint64_t size() const { return end - begin; }
};
/// A shard of the model, unit by unit, in ascending order. Empty pieces are left out.
[[nodiscard]] std::vector<Piece> pieces(const Layout& layout, Cut cut);
[[nodiscard]] std::uint64_t elements(const std::vector<Piece>& shard);

/// Elements of the largest part that a shard has of one unit with such weights.
[[nodiscard]] std::uint64_t largest_part(const Layout& layout, Cut cut, DType weights);

/// The same elements as pieces of two shards.
struct Common {
  Piece a, b;
};
/// What two shards have in common, from left to right.
[[nodiscard]] std::vector<Common> common(const std::vector<Piece>& a, const std::vector<Piece>& b);

/// What a checkpoint is told about the model: its tensors are the master weights.
[[nodiscard]] ModelTable model_table(const std::vector<UnitSpec>& units, const Layout& layout, Optimizer optimizer);

}  // namespace elrun::inline v0
