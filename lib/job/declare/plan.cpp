#include "lib/job/declare/plan.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/format/model.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/digest.hpp"
#include "lib/job/state/update.hpp"

namespace elrun::inline v0 {
namespace {

#if defined(__x86_64__)
constexpr const char* architecture = "x86_64";
#elif defined(__aarch64__)
constexpr const char* architecture = "aarch64";
#else
constexpr const char* architecture = "other";
#endif

}  // namespace

std::vector<std::string> Plan::problems() const {
  std::vector<std::string> out;
  const auto say = [&out]<class... A>(fmt::format_string<A...> text, A&&... values) {
    out.push_back(fmt::format(text, std::forward<A>(values)...));
  };
  if (global_batch == 0) say("global_batch is 0: a step needs at least one sample");
  if (micro_batch == 0) say("micro_batch is 0: a slot needs at least one sample");
  if (global_batch != 0 && micro_batch != 0 && global_batch % micro_batch != 0)
    say("micro_batch {} does not divide global_batch {}: choose a divisor, so that all slots of a step are alike", micro_batch,
        global_batch);
  else if (slots() > slots_max)
    say("global_batch {} / micro_batch {} gives {} slots per step, above the limit of {}: raise micro_batch", global_batch, micro_batch,
        slots(), slots_max);
  if (samples == 0) say("samples is 0: the data set is empty; of a stream say elrun::endless");
  if (steps == 0) say("steps is 0: there is nothing to train; ask for at least one step");
  if (steps != 0 && global_batch > (std::uint64_t{1} << 62) / steps)
    say("steps {} x global_batch {} is beyond 2^62 sample positions", steps, global_batch);
  if (!name_of(placement))
    say("this placement is none of zero(0) to zero(3), nor hybrid(...) or mirrored(...) of one, and no other is known; use one of them");
  if (placement.exchange > Exchange::per_slot)
    say("placement.exchange is none that is known; use Exchange::automatic, per_step or per_slot");
  if (name_of(reduce) == nullptr) say("reduce is none that is known; use Reduce::exact or fast");
  if (reduce == Reduce::fast && exchanges_per_slot(placement))
    say("Reduce::fast saves nothing where gradients are exchanged in every slot: use Reduce::exact, or Exchange::per_step");
  if (name_of(leaves) == nullptr) say("leaves is neither f32 nor bf16; use DType::f32 or DType::bf16");
  if (reduce == Reduce::fast && leaves != DType::f32)
    say("Reduce::fast adds gradients up as they come and has no leaves to round: use Reduce::exact, or leaves = DType::f32");
  if (name_of(optimizer) == nullptr) say("optimizer is none that is known; use Optimizer::adamw, sgd or lion");
  if (numeric.size() > 256 || numeric.find('\n') != std::string::npos)
    say("numeric is to be one line of at most 256 bytes, it has {}", numeric.size());
  return out;
}

const char* name_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::exact: return "exact";
    case Reduce::fast: return "fast";
  }
  return nullptr;
}

const char* name_of(DType leaves) {
  switch (leaves) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    default: return nullptr;
  }
}

std::optional<std::string> name_of(const Placement& placement) {
  for (const int stage : {0, 1, 2, 3}) {
    const Placement plain = zero(stage, placement.exchange);
    if (placement == plain) return fmt::format("zero({})", stage);
    if (placement == hybrid(plain)) return fmt::format("hybrid(zero({}))", stage);
    if (placement == mirrored(plain)) return fmt::format("mirrored(zero({}))", stage);
  }
  return std::nullopt;
}

bool exchanges_per_slot(const Placement& placement) {
  if (placement.exchange != Exchange::automatic) return placement.exchange == Exchange::per_slot;
  return placement.gradients != Sharding::replicated;
}

std::vector<std::string> problems(const Plan& plan, const CheckpointOptions& checkpoint) {
  auto out = plan.problems();
  if (checkpoint.keep < 2)
    out.push_back(fmt::format("checkpoint.keep is {}: keep at least 2, for the newest one may turn out to be damaged", checkpoint.keep));
  if (checkpoint.every > 0 && checkpoint.directory.empty())
    out.push_back(
        fmt::format("checkpoint.every is {}, but checkpoint.directory is empty: name a directory that all nodes share", checkpoint.every));
  if ((checkpoint.interval > Duration{0} || checkpoint.budget > 0) && checkpoint.directory.empty())
    out.push_back(
        "checkpoint.interval or checkpoint.budget is given, but checkpoint.directory is empty: name a directory that all nodes share");
  if (checkpoint.interval < Duration{0}) out.push_back("checkpoint.interval is negative: 0 means that time does not count");
  if (!(checkpoint.budget >= 0 && checkpoint.budget < 1))
    out.push_back(fmt::format("checkpoint.budget is {}: it is a share of the time, from 0 (no matter) to below 1", checkpoint.budget));
  const bool saves_between = checkpoint.every > 0 || checkpoint.interval > Duration{0} || checkpoint.budget > 0;
  if (checkpoint.max_age < Duration{0}) out.push_back("checkpoint.max_age is negative: 0 means that there is no limit");
  if (checkpoint.max_age > Duration{0} && !saves_between)
    out.push_back("checkpoint.max_age is given, but checkpoint.every is 0: no checkpoint is saved before the end");
  if (checkpoint.rate > Bytes{} && !checkpoint.async)
    out.push_back("checkpoint.rate is given, but checkpoint.async is off: a save that blocks has no bound");
  const Sharding cut = plan.placement.optimizer;
  if (checkpoint.in_memory_every > 0 && cut != Sharding::sharded && cut != Sharding::sharded_in_node)
    out.push_back(fmt::format("checkpoint.in_memory_every is {}, but with {} no loss of one worker takes a part of the state: leave it out",
                              checkpoint.in_memory_every, name_of(plan.placement).value_or("this placement")));
  return out;
}

PlanIdentity identity(const Plan& plan) {
  PlanIdentity out;
  out.description = fmt::format(
      "global_batch: {}\nmicro_batch: {}\nsamples: {}\ndata_hash: {:016x}\nseed: {}\nreduce: {}\nleaves: {}\n"
      "optimizer: {}\n"
      "architecture: {}\nelrun.numeric: {}\nprogram.numeric: {}\n",
      plan.global_batch, plan.micro_batch, plan.samples == endless ? "endless" : fmt::to_string(plan.samples), plan.data_hash, plan.seed,
      name_of(plan.reduce), name_of(plan.leaves), name_of(plan.optimizer), architecture, numeric_version, plan.numeric);
  out.hash = to_hex(sha256(as_bytes(out.description)));
  return out;
}

PlanIdentity identity(const Plan& plan, const std::vector<UnitSpec>& units) {
  PlanIdentity out = identity(plan);
  std::string names;
  std::size_t count = 0;
  for (const UnitSpec& unit : units)
    if (std::ranges::any_of(unit.tensors, [](const TensorSpec& t) { return t.dtype == DType::bf16; })) names += " " + unit.name, ++count;
  if (names.empty()) return out;
  std::string line = fmt::format("weights in bf16:{}\n", names);
  // No checkpoint can have a longer one. Shorter ones stay as they are, for hashes in checkpoints are of them.
  if (out.description.size() + line.size() > plan_description_max)
    line = fmt::format("weights in bf16: {} units, whose names have SHA-256 {}\n", count, to_hex(sha256(as_bytes(names))));
  out.description += line;
  out.hash = to_hex(sha256(as_bytes(out.description)));
  return out;
}

}  // namespace elrun::inline v0
