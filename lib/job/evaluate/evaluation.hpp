#pragma once
/// \file What ranks compute of an evaluation, what it comes to, and both as bytes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <elrun/job.hpp>
#include <elrun/result.hpp>

#include "lib/base/bytes.hpp"
#include "lib/job/declare/plan.hpp"

namespace elrun::inline v0 {

inline constexpr std::size_t evaluation_sums_max = 64, evaluation_sum_name_max = 64;  ///< Sums of one evaluation, and bytes of a name.
/// Most bytes of an encoded Evaluation.
inline constexpr std::size_t evaluation_bytes_max =
    32 + evaluation_sums_max * (sizeof(std::uint32_t) + evaluation_sum_name_max + sizeof(double));

/// Of an evaluation that is decided: what members bring of it into a new generation.
[[nodiscard]] ByteVector encode(const Evaluation& evaluation);
[[nodiscard]] Result<Evaluation> decode_evaluation(ByteSpan bytes);

/// The slots of a pass over `count` samples.
[[nodiscard]] constexpr std::uint64_t evaluation_slots(std::uint64_t count, std::uint64_t micro_batch) {
  return count / micro_batch + (count % micro_batch != 0);  // no sum with `count`, which may be the largest number
}

/// Its samples: `micro_batch` ids in order, fewer in the last slot.
[[nodiscard]] std::vector<std::uint64_t> samples_of_evaluation(std::uint64_t count, std::uint64_t micro_batch, std::uint32_t slot);

/// What one slot added, by name.
using EvaluationSums = std::map<std::string, double, std::less<>>;

/// What one rank computed: its slots, in the order in which they are assigned to it. The names of sums come once, before all slots: one rank may have all of them.
class EvaluationPart {
 public:
  explicit EvaluationPart(std::uint64_t count) : count_{count} {}
  void put_slot(float loss, std::uint64_t tokens, const EvaluationSums& sums);
  [[nodiscard]] ByteVector bytes() const;

 private:
  std::uint64_t count_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;  // of the names, in the order in which they came
  ByteWriter slots_;
};
/// Most bytes of a part.
inline constexpr std::uint64_t evaluation_part_bytes_max =
    12 + evaluation_sums_max * (sizeof(std::uint32_t) + evaluation_sum_name_max) +
    std::uint64_t{slots_max} * (16 + evaluation_sums_max * (sizeof(std::uint32_t) + sizeof(double)));

/// Folds the parts of all ranks over the canonical tree of slots. `by_rank`: the slots of each rank. A part without bytes is one of a rank that only
/// served the others. `mismatch`: ranks passed different counts, or slots added more than
/// `evaluation_sums_max` names; `protocol`: a part is no part.
[[nodiscard]] Result<Evaluation> fold_evaluation(std::uint64_t count, std::uint64_t micro_batch,
                                                 std::span<const std::vector<std::uint32_t>> by_rank, std::span<const ByteVector> parts,
                                                 std::uint32_t me);

}  // namespace elrun::inline v0
