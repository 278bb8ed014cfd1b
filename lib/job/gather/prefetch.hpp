#pragma once
/// \file PrefetchPredictor: predicts the next unit from the order of uses in the previous slot. Core. A wrong guess costs one transfer and
/// never changes a result.

#include <cstdint>
#include <optional>
#include <vector>

namespace elrun::inline v0 {

class PrefetchPredictor {
 public:
  /// Uses of one slot that are remembered.
  static constexpr std::size_t uses_max = 1 << 16;

  /// A slot begins.
  void begin();
  /// A scope of `unit` begins, of which none was open; returns whose is expected to be the next in this slot.
  std::optional<std::uint32_t> used(std::uint32_t unit);
  /// The first one of the next slot.
  [[nodiscard]] std::optional<std::uint32_t> next_slots_first() const;

 private:
  std::vector<std::uint32_t> before_, now_;  // units in the order of their uses: in the last slot, and in this one
  std::size_t at_ = 0;                       // of those before: the first that has not come yet
};

}  // namespace elrun::inline v0
