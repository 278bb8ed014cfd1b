#pragma once
/// \file CallKind: which collective a call is, and how it reduces. It travels beside the count of calls, so that ranks learn that they make different
/// calls of equal lengths. Pure.

#include <cstdint>
#include <string>

#include <elrun/ids.hpp>
#include <elrun/process_group.hpp>
#include <elrun/result.hpp>
#include <elrun/tensor.hpp>

namespace elrun::inline v0 {

/// Eight bits. 0 is a move: exchange, send and receive, of which one rank may make one and its peer another.
class CallKind {
 public:
  enum Plain : std::uint8_t { move, all_gather, all_to_all, barrier, split };
  constexpr CallKind() = default;
  constexpr CallKind(Plain kind) : code_{kind} {}  // NOLINT(google-explicit-constructor): a kind is one
  static constexpr CallKind all_reduce(DType type, ReduceOp op) { return reduction(0, type, op); }
  static constexpr CallKind reduce_scatter(DType type, ReduceOp op) { return reduction(1, type, op); }
  /// Roots that differ by a multiple of 128 are not told apart.
  static constexpr CallKind broadcast(Rank root) { return CallKind{static_cast<std::uint8_t>(broadcasts + root.value() % broadcasts)}; }

  static constexpr CallKind from_code(std::uint8_t code) { return CallKind{code}; }
  [[nodiscard]] constexpr std::uint8_t code() const { return code_; }
  friend constexpr bool operator==(CallKind, CallKind) = default;

 private:
  friend std::string to_string(CallKind kind);
  static constexpr unsigned reductions = 64, broadcasts = 128;
  explicit constexpr CallKind(std::uint8_t code) : code_{code} {}
  static constexpr CallKind reduction(unsigned scatters, DType type, ReduceOp op) {
    return CallKind{static_cast<std::uint8_t>(reductions + 32 * scatters + 8 * static_cast<unsigned>(op) + static_cast<unsigned>(type))};
  }
  std::uint8_t code_ = move;
};

/// As in "all_reduce of i32 by max"; of any code, also of one that no rank sends.
[[nodiscard]] std::string to_string(CallKind kind);
/// A peer's call is of another kind than this rank's.
[[nodiscard]] Failure differing_kinds(Rank peer, CallKind theirs, CallKind mine);

}  // namespace elrun::inline v0
