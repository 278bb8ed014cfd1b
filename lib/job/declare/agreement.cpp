#include "lib/job/declare/agreement.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/words.hpp"
#include "lib/job/declare/plan.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t lines_told = 5;  // of each side: a model of another width differs in all of its lines

const char* word(Sharding sharding) {
  switch (sharding) {
    case Sharding::replicated: return "replicated";
    case Sharding::sharded: return "sharded";
    case Sharding::sharded_in_node: return "sharded in each node";
    case Sharding::mirrored: return "mirrored";
  }
  return "unknown";
}

const char* exchanged(const Plan& plan) {
  if (exchanges_per_slot(plan.placement)) return "per slot";
  const bool by_memory = plan.placement.exchange == Exchange::automatic && plan.memory_per_rank > 0;
  return by_memory ? "as memory_per_rank allows" : "per step";
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

/// Adds the lines of `a` that `b` has not.
void add_own(std::string& out, std::string_view whose, std::string_view a, std::string_view b) {
  auto others = lines_of(b);
  std::sort(others.begin(), others.end());
  std::size_t more = 0, told = 0;
  for (const std::string_view line : lines_of(a)) {
    if (std::binary_search(others.begin(), others.end(), line)) continue;
    if (told++ < lines_told) out += fmt::format("{}{}: {}", out.empty() ? "" : "\n", whose, line);
    else ++more;
  }
  if (more > 0) out += fmt::format("\n{}: and {} more", whose, more);
}

}  // namespace

std::vector<Agreement> agreements(const Plan& plan, const CheckpointOptions& checkpoint, const std::vector<UnitSpec>& units) {
  std::string model;
  for (const UnitSpec& unit : units) {
    model += fmt::format("unit {}\n", unit.name);
    for (const TensorSpec& t : unit.tensors)
      model += fmt::format("{}/{}: {}, decay {}, frozen {}, uses {}{}\n", unit.name, t.name, fmt::join(t.shape, "x"), t.options.decay,
                           t.options.frozen, t.options.uses, t.dtype == DType::bf16 ? ", weights in bf16" : "");
  }
  return {
      {"plan", identity(plan).description},
      {"placement or number of steps",
       fmt::format("parameters: {}\ngradients: {}, exchanged {}\noptimizer: {}\nmemory_per_rank: {}\noverlap: {}\nsteps: {}\n",
                   word(plan.placement.parameters), word(plan.placement.gradients), exchanged(plan), word(plan.placement.optimizer),
                   plan.memory_per_rank, plan.overlap ? "on" : "off", plan.steps)},
      {"checkpoint options",
       fmt::format("directory: '{}'\nevery: {}\ninterval: {}\nbudget: {}\nmax_age: {}\nasync: {}\nrate: {}\nin_memory_every: {}\n",
                   checkpoint.directory, checkpoint.every, for_people(checkpoint.interval), checkpoint.budget,
                   for_people(checkpoint.max_age), checkpoint.async ? "on" : "off", checkpoint.rate.value(), checkpoint.in_memory_every)},
      {"model", std::move(model)}};
}

Agreement directory_agreement(const std::string& whole) {
  return {"checkpoint directory", fmt::format("directory: {}\n", whole),
          "a relative checkpoint.directory is below each worker's working directory; give an absolute path that is the same on all nodes"};
}

std::string difference(std::string_view whose_a, std::string_view a, std::string_view whose_b, std::string_view b) {
  std::string out;
  add_own(out, whose_a, a, b);
  add_own(out, whose_b, b, a);
  return out.empty() ? "the same lines in another order" : out;
}

}  // namespace elrun::inline v0
