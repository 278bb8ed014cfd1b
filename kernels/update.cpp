#include "kernels/update.hpp"

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

/// One run, on the host.
struct Pass {
  const UpdateArrays& arrays;
  const UpdateRun& run;
  Isa isa;

  [[nodiscard]] std::span<float> parameter() const { return {arrays.parameter + run.parameter, run.size}; }
  [[nodiscard]] std::span<float> moment(std::size_t i) const { return {arrays.moments[i] + run.moment, run.size}; }
  [[nodiscard]] std::span<const float> gradient() const { return {arrays.gradient + run.gradient, run.size}; }
  [[nodiscard]] std::span<bf16> rounded() const {
    return arrays.rounded == nullptr ? std::span<bf16>{} : std::span{arrays.rounded + run.parameter, run.size};
  }
  void operator()(const AdamWStep& s) const { adamw(parameter(), moment(0), moment(1), gradient(), s, rounded(), isa); }
  void operator()(const SgdStep& s) const { sgd(parameter(), moment(0), gradient(), s, rounded(), isa); }
  void operator()(const LionStep& s) const { lion(parameter(), moment(0), gradient(), s, rounded(), isa); }
};

}  // namespace

OptimizerStep without_decay(OptimizerStep step) {
  std::visit([](auto& s) { s.weight_decay = 0; }, step);
  return step;
}

std::uint64_t count_tiles(std::span<UpdateRun> runs) {
  std::uint64_t tiles = 0;
  for (UpdateRun& run : runs) {
    ELRUN_ASSERT(run.size > 0);
    run.first_tile = tiles;
    tiles += tile_count(run.size, update_tile);
  }
  return tiles;
}

void update(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step, Isa isa) {
  const OptimizerStep plain = without_decay(step);
  for (const UpdateRun& run : std::span{table.runs, table.size}) std::visit(Pass{arrays, run, isa}, run.decays != 0 ? step : plain);
}

}  // namespace elrun::inline v0
