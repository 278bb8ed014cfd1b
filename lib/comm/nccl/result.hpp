#pragma once
/// \file What NCCL answers, and the one translation of it. Pure: the numbers are those of nccl.h, which the shell checks.

#include <cstdint>
#include <string>
#include <string_view>

#include <elrun/failure.hpp>

namespace elrun::inline v0 {

enum class NcclResult : std::uint8_t {
  success,
  unhandled_cuda_error,
  system_error,
  internal_error,
  invalid_argument,
  invalid_usage,
  remote_error,
  in_progress,
};

[[nodiscard]] constexpr bool is_error(NcclResult result) { return result != NcclResult::success && result != NcclResult::in_progress; }

/// `call` gave `result`, an error. `detail`: the library's own words, which may be empty. `device`: as people read it, "cuda:3".
[[nodiscard]] Failure from_nccl(NcclResult result, std::string_view call, std::string_view device, std::string_view detail);

}  // namespace elrun::inline v0
