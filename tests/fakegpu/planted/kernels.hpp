#pragma once
/// \file Small kernels, right and wrong: what the interpreter has to run, and what the checker has to find.

#include <cstdint>
#include <span>
#include <string_view>

#include <elrun/device.hpp>

namespace elrun::planted {

/// The arrays that all kernels get: `count` floats each, and a counter.
struct Arrays {
  float* out = nullptr;
  const float* in = nullptr;
  std::uint64_t* counter = nullptr;
  std::uint64_t count = 0;
};

struct KernelCase {
  std::string_view name;
  void (*launch)(const Arrays& arrays, Stream stream);
  std::string_view found;  ///< What the report says; empty for a right kernel.
};

/// All of them, each right one beside its wrong variants.
[[nodiscard]] std::span<const KernelCase> kernel_cases();

}  // namespace elrun::planted
