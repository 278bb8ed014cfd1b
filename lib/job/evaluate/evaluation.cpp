#include "lib/job/evaluate/evaluation.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <string>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/gradients/tree.hpp"

namespace elrun::inline v0 {
namespace {

/// The first word. Not inlined: g++ 12 warns of an overflow where it knows that the vector is empty.
[[gnu::noinline]] void begin_with(ByteWriter& w, std::uint64_t word) { w.put(word); }

}  // namespace

double Evaluation::sum(std::string_view name) const {
  const auto at = std::ranges::find(sums, name, [](const auto& sum) { return std::string_view{sum.first}; });
  return at == sums.end() ? 0.0 : at->second;
}

ByteVector encode(const Evaluation& e) {
  ByteWriter w;
  begin_with(w, e.tokens);
  w.put(std::bit_cast<std::uint32_t>(e.loss));
  w.put(static_cast<std::uint32_t>(e.sums.size()));
  for (const auto& [name, value] : e.sums) w.put_text(name), w.put(std::bit_cast<std::uint64_t>(value));
  return w.take();
}

Result<Evaluation> decode_evaluation(ByteSpan bytes) {
  ByteReader r{bytes};
  Evaluation e{.decided = true};
  e.tokens = r.get<std::uint64_t>();
  e.loss = std::bit_cast<float>(r.get<std::uint32_t>());
  const auto sums = r.get<std::uint32_t>();
  if (sums > evaluation_sums_max) r.mark_broken();
  for (std::uint32_t i = 0; i < sums && !r.broken(); ++i) {
    std::string name = r.get_text(evaluation_sum_name_max);
    e.sums.emplace_back(std::move(name), std::bit_cast<double>(r.get<std::uint64_t>()));
  }
  ELRUN_TRY(r.finish("what another member's evaluation came to"));
  return e;
}

EvaluationPart::EvaluationPart(std::uint64_t count) { begin_with(bytes_, count); }

void EvaluationPart::put_slot(float loss, std::uint64_t tokens, const EvaluationSums& sums) {
  bytes_.put(tokens);
  bytes_.put(std::bit_cast<std::uint32_t>(loss));
  bytes_.put(static_cast<std::uint32_t>(sums.size()));
  for (const auto& [name, value] : sums) bytes_.put_text(name), bytes_.put(std::bit_cast<std::uint64_t>(value));
}

Result<Evaluation> fold_evaluation(std::uint64_t count, std::uint64_t micro_batch, std::span<const std::vector<std::uint32_t>> by_rank,
                                   std::span<const ByteVector> parts, std::uint32_t me) {
  const std::uint64_t slots = evaluation_slots(count, micro_batch);
  Evaluation result{.decided = true};
  std::vector<double> losses(slots), tokens(slots), samples(slots);
  std::map<std::string, std::vector<double>> sums;
  for (std::uint32_t r = 0; r < parts.size(); ++r) {
    if (parts[r].empty() && by_rank[r].empty()) continue;
    ByteReader reader{parts[r]};
    if (const auto theirs = reader.get<std::uint64_t>(); theirs != count && !reader.broken())
      return Failure{Code::mismatch, Remedy::fix_config,
                     fmt::format("rank {} calls evaluate({}), and rank {} evaluate({}): call it on all ranks, with the same number", r,
                                 theirs, me, count)};
    for (const std::uint32_t index : by_rank[r]) {
      const auto n = reader.get<std::uint64_t>();
      result.tokens += n;
      tokens[index] = static_cast<double>(n), samples[index] = static_cast<double>(std::min(micro_batch, count - index * micro_batch));
      losses[index] = std::bit_cast<float>(reader.get<std::uint32_t>());
      for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.broken(); --left) {
        auto& of_name = sums[reader.get_text(evaluation_sum_name_max)];
        of_name.resize(slots);
        of_name[index] = std::bit_cast<double>(reader.get<std::uint64_t>());
      }
    }
    ELRUN_TRY(reader.finish("a part of an evaluation"));
  }
  if (sums.size() > evaluation_sums_max)
    return Failure{Code::mismatch, Remedy::fix_config,
                   fmt::format("the slots of an evaluation added sums of {} names: {} is the limit, so let no name follow from the slot",
                               sums.size(), evaluation_sums_max)};
  const auto folded = [](const std::vector<double>& leaves) { return fold_leaves(std::span<const double>{leaves}, std::plus<>{}); };
  const std::vector<double>& weights = result.tokens > 0 ? tokens : samples;
  for (std::size_t i = 0; i < slots; ++i) losses[i] = weights[i] == 0 ? 0.0 : losses[i] * weights[i];
  result.loss = static_cast<float>(folded(losses) / folded(weights));
  for (const auto& [name, leaves] : sums) result.sums.emplace_back(name, folded(leaves));
  return result;
}

}  // namespace elrun::inline v0
