#include "lib/comm/call_kind.hpp"

#include <array>
#include <string_view>

#include <fmt/format.h>

namespace elrun::inline v0 {

std::string to_string(CallKind kind) {
  constexpr std::array<std::string_view, 5> plain{"exchange, send or receive", "all_gather", "all_to_all", "barrier", "split"};
  constexpr std::array<std::string_view, 4> operations{"sum", "min", "max", "avg"};                         // as ReduceOp has them
  constexpr std::array<std::string_view, 8> types{"f32", "bf16", "f64", "i32", "i64", "u8", "u32", "u64"};  // as DType has them
  const unsigned code = kind.code();
  if (code >= CallKind::broadcasts)
    return fmt::format("broadcast from rank {} (modulo {})", code - CallKind::broadcasts, CallKind::broadcasts);
  if (code >= CallKind::reductions)
    return fmt::format("{} of {} by {}", code & 32 ? "reduce_scatter" : "all_reduce", types[code % 8], operations[code / 8 % 4]);
  return std::string{code < plain.size() ? plain[code] : "a call that this version does not know"};
}

Failure differing_kinds(Rank peer, CallKind theirs, CallKind mine) {
  return {
      .code = Code::protocol,
      .remedy = Remedy::abort_group,
      .what = fmt::format("rank {} is in {}, and this rank in {}: the ranks make different calls{}", peer.value(), to_string(theirs),
                          to_string(mine), theirs == CallKind{} || mine == CallKind{} ? ", or have different versions of libelrun" : ""),
      .peer = peer};
}

}  // namespace elrun::inline v0
