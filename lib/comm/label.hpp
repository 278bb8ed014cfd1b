#pragma once
/// \file The label of a call: a number that says what the call is for. It travels in the same word as the count of calls, so it costs no byte.

#include <cstdint>

#include <fmt/format.h>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

namespace elrun::inline v0 {

using LabelName = const char* (*)(std::uint16_t label);

struct CallLabel {
  std::uint16_t number = 0;
  LabelName name = nullptr;  ///< Text for any number, also for unknown ones; null: numbers are printed.
};

constexpr int label_shift = 48;  ///< A group makes fewer calls than 2^48.
[[nodiscard]] constexpr std::uint64_t call_word(std::uint64_t call, std::uint16_t label) {
  return std::uint64_t{label} << label_shift | call;
}
[[nodiscard]] constexpr std::uint16_t label_of(std::uint64_t word) { return static_cast<std::uint16_t>(word >> label_shift); }
[[nodiscard]] constexpr std::uint64_t call_of(std::uint64_t word) { return word & ((std::uint64_t{1} << label_shift) - 1); }

/// A peer's call has another label than this rank's. The program is wrong, and another generation would not help.
[[nodiscard]] inline Failure differing_labels(Rank peer, std::uint16_t theirs, const CallLabel& mine) {
  const auto text = [&](std::uint16_t label) {
    return mine.name != nullptr ? std::string{mine.name(label)} : fmt::format("a call of kind {}", label);
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
