#pragma once
/// \file Data order without state: which sample stands at a position follows from (seed, position) alone.
///
/// Position p = step * global_batch + slot * micro_batch + i lies in epoch p / N at place p mod N; the sample is a
/// keyed permutation of the place (of a stream it is p itself): a Feistel network over the next even number of bits, walked until it lands below N
/// (a cycle of a permutation comes back, so the walk ends, after fewer than four steps on average).

#include <cstdint>
#include <span>
#include <string_view>

#include <elrun/plan.hpp>
#include <elrun/random.hpp>

namespace elrun::inline v0 {

/// Where sample `place` of `epoch` comes from: a permutation of [0, count) for each (seed, epoch).
[[nodiscard]] std::uint64_t permuted(std::uint64_t seed, std::uint64_t epoch, std::uint64_t place, std::uint64_t count);

/// Sample ids of one slot of one step; `out` has `plan.micro_batch` elements.
void samples_of_slot(const Plan& plan, std::uint64_t step, std::uint32_t slot, std::span<std::uint64_t> out);

/// Random numbers of one slot of one step (dropout).
[[nodiscard]] RandomStream slot_stream(std::uint64_t seed, std::uint64_t step, std::uint32_t slot);
/// Random numbers with a name (initial values).
[[nodiscard]] RandomStream named_stream(std::uint64_t seed, std::string_view name);

}  // namespace elrun::inline v0
