#pragma once
/// \file The values of --zero, which samples that train have in common.

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include <elrun/plan.hpp>

namespace samples {

#define SAMPLES_STAGES "0|1|2|3|hybrid2|hybrid3|mirrored1|mirrored2|mirrored3"

/// Empty, or what is wrong with the value.
[[nodiscard]] inline std::string problem_of_zero(std::string_view zero) {
  constexpr std::string_view stages[] = {"0", "1", "2", "3", "hybrid2", "hybrid3", "mirrored1", "mirrored2", "mirrored3"};
  if (std::ranges::find(stages, zero) != std::end(stages)) return "";
  return "--zero " + std::string{zero} + " is none of 0, 1, 2, 3, hybrid2, hybrid3, mirrored1, mirrored2 and mirrored3";
}

/// Of a value without a problem.
[[nodiscard]] inline elrun::Placement placement_of(std::string_view zero, elrun::Exchange exchange = elrun::Exchange::automatic) {
  const elrun::Placement stage = elrun::zero(zero.back() - '0', exchange);
  if (zero.starts_with("mirrored")) return elrun::mirrored(stage);
  return zero.starts_with("hybrid") ? elrun::hybrid(stage) : stage;
}

}  // namespace samples
