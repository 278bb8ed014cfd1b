#pragma once
/// \file The optimizer phase: one pass of an optimizer over a table of runs, in one launch on a device. A run is as long as weight decay does not change.

#include <cstdint>
#include <span>
#include <variant>

#include <elrun/device.hpp>
#include <elrun/tensor.hpp>

#include "kernels/adamw.hpp"
#include "kernels/momentum.hpp"
#include "kernels/tiles.hpp"

namespace elrun::inline v0 {

/// The scalars of one step, of whichever optimizer.
using OptimizerStep = std::variant<AdamWStep, SgdStep, LionStep>;
/// The same for what does not decay.
[[nodiscard]] OptimizerStep without_decay(OptimizerStep step);

/// Elements that lie side by side in each array, and are updated alike. Places are counted in elements from the array's beginning. The table does not
/// change from step to step: it is written once.
struct UpdateRun {
  std::uint64_t parameter = 0;  ///< Where it begins in the parameters, and in their bf16 copy.
  std::uint64_t moment = 0;     ///< In each of the moments.
  std::uint64_t gradient = 0;
  std::uint64_t size = 0;
  std::uint64_t decays = 0;      ///< 1: with the step's weight decay; 0: without any.
  std::uint64_t first_tile = 0;  ///< By `count_tiles`.
};

/// Where the arrays begin. They do not overlap, nor do the runs of one array.
struct UpdateArrays {
  float* parameter = nullptr;
  float* moments[2] = {};  ///< As many as the optimizer has.
  const float* gradient = nullptr;
  bf16* rounded = nullptr;  ///< Receives the parameter as bf16, where there is one.
};

/// Of the same memory as the arrays.
struct UpdateTable {
  const UpdateRun* runs = nullptr;
  std::uint32_t size = 0;
  std::uint64_t tiles = 0;  ///< By `count_tiles`.
};

inline constexpr std::uint64_t update_tile = 1024;  ///< Elements that a block takes at a time.

/// Says in each run which its first tile is, and returns how many there are. No run is empty.
[[nodiscard]] std::uint64_t count_tiles(std::span<UpdateRun> runs);

/// The arrays and the table lie on the host.
void update(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step, Isa isa = isa_of_this_machine());
/// They lie on the stream's device. Accesses are 16 bytes wide in each run where all arrays allow it, whichever element it begins with.
void update_async(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step, Stream stream);

}  // namespace elrun::inline v0
