#pragma once
/// \file What a call gives and what it gets lie apart in memory. Pure: it compares addresses, and reads nothing.

#include <cstddef>
#include <functional>
#include <string_view>

#include <fmt/format.h>

#include <elrun/result.hpp>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

struct Extent {
  const std::byte* begin = nullptr;
  std::size_t size = 0;  ///< In bytes.
};

/// `invalid_argument` where they overlap: peers still read `in` while `out` is written. `in_place`: the one is this rank's own part of the other, which
/// no peer reads or writes.
[[nodiscard]] inline Result<void> check_apart(std::string_view call, Extent in, Extent out, bool in_place = false) {
  const std::less_equal<const std::byte*> before;
  if (in_place || in.size == 0 || out.size == 0 || before(in.begin + in.size, out.begin) || before(out.begin + out.size, in.begin))
    return {};
  return invalid(fmt::format(
      "`in` and `out` of {} overlap, so one would be read while the other is written (in place work all_reduce, and all_gather and reduce_scatter "
      "at this rank's own part)",
      call));
}

}  // namespace elrun::inline v0
