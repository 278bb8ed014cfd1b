#pragma once
/// \file Random numbers by place: (seed, step, slot, operation, element), never by who draws them or when.

#include <cstdint>

#include <elrun/philox.hpp>

namespace elrun::inline v0 {

/// A stream of random numbers of Philox4x32-10 (elrun/philox.hpp), one per element index. A value; copies give the same numbers. Usable on host and device.
class RandomStream {
 public:
  constexpr RandomStream() = default;
  /// `key` separates jobs and steps, `slot` and `operation` what happens in them.
  ELRUN_HD constexpr RandomStream(std::uint64_t key, std::uint32_t slot, std::uint32_t operation)
      : key_{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}, slot_{slot}, operation_{operation} {}

  /// The numbers of one operation (a layer's dropout, say) under this slot.
  [[nodiscard]] ELRUN_HD constexpr RandomStream operation(std::uint32_t id) const {
    RandomStream s = *this;
    s.operation_ = id;
    return s;
  }
  /// 32 random bits of element `index`.
  [[nodiscard]] ELRUN_HD constexpr std::uint32_t bits(std::uint64_t index) const {
    return block(index >> 2)[static_cast<unsigned>(index & 3)];
  }
  /// The same of elements 4 * `quad` to 4 * `quad` + 3, for the price of one.
  [[nodiscard]] ELRUN_HD constexpr Philox4x32::Counter four_bits(std::uint64_t quad) const { return block(quad); }
  /// In [0, 1), 24 bits.
  [[nodiscard]] ELRUN_HD constexpr float uniform(std::uint64_t index) const { return unit_float(bits(index)); }
  /// Mean 0, variance 1: the sum of twelve uniform numbers (Irwin-Hall), which needs no library function and so has the
  /// same bits everywhere; it never exceeds 6.
  [[nodiscard]] ELRUN_HD constexpr float normal(std::uint64_t index) const {
    std::uint64_t sum = 0;
    for (unsigned i = 0; i < 3; ++i)
      for (const std::uint32_t word : block(index * 3 + i)) sum += word >> 8;
    return static_cast<float>(static_cast<std::int64_t>(sum) - (std::int64_t{6} << 24)) * 0x1.0p-24f;
  }

 private:
  [[nodiscard]] ELRUN_HD constexpr Philox4x32::Counter block(std::uint64_t index) const {
    return Philox4x32::block({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), slot_, operation_}, key_);
  }
  Philox4x32::Key key_{};
  std::uint32_t slot_ = 0, operation_ = 0;
};

}  // namespace elrun::inline v0
