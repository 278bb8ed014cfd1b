#pragma once
/// \file The label of a call: a number that says what the call is for. It travels, with the kind of the call, in the same word as the count of calls, so
/// it costs no byte.

#include <cstdint>

#include <fmt/format.h>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

#include "lib/comm/call_kind.hpp"

namespace elrun::inline v0 {

using LabelName = const char* (*)(std::uint16_t label);

struct CallLabel {
  std::uint16_t number = 0;
  LabelName name =
      nullptr;      ///< The program's code, for the thread of the call alone. Without it, or where it returns null, numbers are printed.
  CallKind kind{};  ///< Which collective it is. A part of another one, as the gather in a small all_reduce, has that one's.
};

constexpr int label_shift = 48,
              kind_shift = 40;  ///< A pair of ranks makes fewer calls in a generation than 2^40: at 10 us each, they take four months.
[[nodiscard]] constexpr std::uint64_t call_word(std::uint64_t call, const CallLabel& label) {
  return std::uint64_t{label.number} << label_shift | std::uint64_t{label.kind.code()} << kind_shift | call;
}
[[nodiscard]] constexpr std::uint16_t label_of(std::uint64_t word) { return static_cast<std::uint16_t>(word >> label_shift); }
[[nodiscard]] constexpr CallKind kind_of(std::uint64_t word) { return CallKind::from_code(static_cast<std::uint8_t>(word >> kind_shift)); }
[[nodiscard]] constexpr std::uint64_t call_of(std::uint64_t word) { return word & ((std::uint64_t{1} << kind_shift) - 1); }

/// A peer's call has another label than this rank's. The program is wrong, and another generation would not help. Calls `mine.name`.
[[nodiscard]] inline Failure differing_labels(Rank peer, std::uint16_t theirs, const CallLabel& mine) {
  const auto text = [&](std::uint16_t label) {
    const char* const name = mine.name != nullptr ? mine.name(label) : nullptr;
    return name != nullptr ? std::string{name} : fmt::format("a call of kind {}", label);
  };
  return {
      .code = Code::mismatch,
      .remedy = Remedy::fix_config,
      .what = fmt::format(
          "rank {} is in {}, and this rank in {}: all ranks make the same calls in the same order; look for a call that depends on the rank, the "
          "time or a failure",
          peer.value(), text(theirs), text(mine.number)),
      .peer = peer};
}

}  // namespace elrun::inline v0
