#include "lib/job/state/rounded_units.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

RoundedUnits::RoundedUnits(const Layout& layout, Memory& memory) : memory_{&memory}, at_(layout.units.size()) {
  std::uint64_t largest = 0;
  for (const UnitLayout& unit : layout.units) {
    rounds_.push_back(unit.weights == DType::bf16);
    sizes_.push_back(unit.trainable);
    if (rounds_.back()) largest = std::max(largest, unit.trainable);
  }
  static_assert(granule % 2 == 0);  // two bf16 in the place of a float
  buffers_ = UnitBuffers{largest / 2, memory};
}

void RoundedUnits::make_room_to_give(std::size_t others, std::uint64_t elements) {
  if (given_.size() < others * elements) given_ = Arena<bf16>{others * elements, *memory_};
}

void RoundedUnits::let_go(std::uint32_t unit) {
  if (at_[unit] != nullptr) buffers_.give_back(std::exchange(at_[unit], nullptr));
}

void RoundedUnits::round(const Piece& p, std::span<const float> masters) {
  memory_->to_bf16(masters, unit(p.unit).subspan(p.begin, p.size()));
}

std::span<const bf16> RoundedUnits::given(std::span<const float> masters, Memory& in) {
  ELRUN_ASSERT(taken_ + masters.size() <= given_.size());
  const std::span<bf16> out = given_.span(std::exchange(taken_, taken_ + masters.size()), masters.size());
  in.to_bf16(masters, out);
  return out;
}

}  // namespace elrun::inline v0
