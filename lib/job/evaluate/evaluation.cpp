#include "lib/job/evaluate/evaluation.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/gradients/tree.hpp"

namespace elrun::inline v0 {
namespace {

/// The first word. Not inlined: g++ 12 warns of an overflow where it knows that the vector is empty.
[[gnu::noinline]] void begin_with(ByteWriter& w, std::uint64_t word) { w.put(word); }

Failure too_many_sums(std::size_t names) {
  return {Code::mismatch, Remedy::fix_config,
          fmt::format("the slots of an evaluation added sums of {} names: {} is the limit, so let no name follow from the slot", names,
                      evaluation_sums_max)};
}

}  // namespace

double Evaluation::sum(std::string_view name) const {
  const auto at = std::ranges::find(sums, name, [](const auto& sum) { return std::string_view{sum.first}; });
  return at == sums.end() ? 0.0 : at->second;
}

std::vector<std::uint64_t> samples_of_evaluation(std::uint64_t count, std::uint64_t micro_batch, std::uint32_t slot) {
  const std::uint64_t first = slot * micro_batch;
  std::vector<std::uint64_t> samples(std::min(micro_batch, count - first));
  std::iota(samples.begin(), samples.end(), first);
  return samples;
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

void EvaluationPart::put_slot(float loss, std::uint64_t tokens, const EvaluationSums& sums) {
  slots_.put(tokens);
  slots_.put(std::bit_cast<std::uint32_t>(loss));
  slots_.put(static_cast<std::uint32_t>(sums.size()));
  for (const auto& [name, value] : sums) {
    slots_.put(numbers_.try_emplace(name, static_cast<std::uint32_t>(numbers_.size())).first->second);
    slots_.put(std::bit_cast<std::uint64_t>(value));
  }
}

ByteVector EvaluationPart::bytes() const {
  ByteWriter w;
  begin_with(w, count_);
  w.put(static_cast<std::uint32_t>(numbers_.size()));
  if (numbers_.size() > evaluation_sums_max) return w.take();  // refused for that alone, however long it would be
  std::vector<std::string_view> names(numbers_.size());
  for (const auto& [name, number] : numbers_) names[number] = name;
  for (const std::string_view name : names) w.put_text(name);
  w.put_raw(slots_.bytes());
  return w.take();
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
    const auto named = reader.get<std::uint32_t>();
    if (named > evaluation_sums_max && !reader.broken()) return too_many_sums(named);
    std::vector<std::string> names;
    for (std::uint32_t i = 0; i < named && !reader.broken(); ++i) names.push_back(reader.get_text(evaluation_sum_name_max));
    for (const std::uint32_t index : by_rank[r]) {
      const auto n = reader.get<std::uint64_t>();
      result.tokens += n;
      tokens[index] = static_cast<double>(n), samples[index] = static_cast<double>(std::min(micro_batch, count - index * micro_batch));
      losses[index] = std::bit_cast<float>(reader.get<std::uint32_t>());
      for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.broken(); --left) {
        const auto number = reader.get<std::uint32_t>();
        if (number >= names.size()) {
          reader.mark_broken();
          break;
        }
        auto& of_name = sums[names[number]];
        of_name.resize(slots);
        of_name[index] = std::bit_cast<double>(reader.get<std::uint64_t>());
      }
    }
    ELRUN_TRY(reader.finish("a part of an evaluation"));
  }
  if (sums.size() > evaluation_sums_max) return too_many_sums(sums.size());
  const auto folded = [](const std::vector<double>& leaves) { return fold_leaves(std::span<const double>{leaves}, std::plus<>{}); };
  const std::vector<double>& weights = result.tokens > 0 ? tokens : samples;
  for (std::size_t i = 0; i < slots; ++i) losses[i] = weights[i] == 0 ? 0.0 : losses[i] * weights[i];
  result.loss = static_cast<float>(folded(losses) / folded(weights));
  for (const auto& [name, leaves] : sums) result.sums.emplace_back(name, folded(leaves));
  return result;
}

}  // namespace elrun::inline v0
