// The model that simulated workers train, and the states of a world in which nothing happens.

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/state_hash.hpp"
#include "lib/base/clock.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/support/sim/planted_bugs.hpp"
#include "tests/support/sim/program.hpp"

namespace elrun::sim {
namespace {

std::uint64_t hash_of(std::span<const float> weights, std::uint64_t unit) { return mix_sum(std::as_bytes(weights), 0, unit); }

}  // namespace

void Trainer::train(Job& job, const Plan& wanted, const CheckpointOptions& checkpoint) {
  Plan plan = wanted;
  plan.overlap = false;  // a thread of the job's own would run beside the simulated time, and outlive a process that ends at an action
  job.configure(plan, checkpoint);
  struct Part {
    Unit unit;
    Tensor<float> weight;
  };
  std::vector<Part> parts;
  for (const auto& [name, size] : {std::pair{"first", 2100u}, std::pair{"second", 700u}}) {
    Unit unit = job.unit(name);
    parts.push_back({unit, unit.tensor<float>("weight", {size})});
  }
  const Tensor<float> fixed = parts[0].unit.tensor<float>("fixed", {300}, {.frozen = true});
  std::uint64_t begun = 0;
  job.state("begun", begun);
  job.seal();
  if (!job.restore())
    for (Part& part : parts) {
      const auto scope = part.unit.use();
      for (std::uint64_t i = 0; i < part.weight.size(); ++i) part.weight.data()[i] = static_cast<float>(i % 13) * 0.125f - 0.75f;
      if (&part == &parts[0]) std::fill_n(fixed.data(), fixed.size(), 0.5f);
    }
  const bool sharded = plan.placement.parameters != Sharding::replicated;
  while (auto step = job.next_step()) {
    const std::uint64_t number = step->number();
    std::vector<std::uint64_t> weights;
    for (std::uint32_t u = 0; u < parts.size() && !sharded; ++u) weights.push_back(hash_of(parts[u].weight.span(), u));
    handed_out(number, begun, weights);
    ++begun;
    for (elrun::Slot& slot : step->slots()) {
      float x = 0;
      for (const std::uint64_t sample : slot.samples()) x += static_cast<float>(sample % 7) - 3.0f;
      const std::uint64_t salt = slot.rng().bits(0);
      for (std::uint32_t u = 0; u < parts.size(); ++u) {
        const auto scope = parts[u].unit.use_grad();
        const std::span<const float> weight = parts[u].weight.span();
        if (!slot.revoked()) read_weights(number, u, hash_of(weight, u));
        for (std::size_t i = 0; i < weight.size(); ++i)
          parts[u].weight.grad()[i] += weight[i] * x * 0.1f + static_cast<float>((i * 2654435761u ^ salt) & 1023u) * 0x1p-8f;
      }
      slot.report(x * 0.25f + static_cast<float>(salt & 255u), 3 + slot.index());
      ran_slot(number, slot);
    }
    const StepResult result = step->apply(AdamW{.weight_decay = 0.05f}, {.lr = 0.01f / static_cast<float>(1 + number), .clip_norm = 8.0f});
    if (result.decided) reported(number, result);
  }
  ended(job.outcome());
}

namespace {

/// A world of one.
class Alone final : public Session {
 public:
  explicit Alone(const Clock& clock) : shared_{clock, Generation{1}}, store_{shared_.of(Rank{0})} {
    place_.membership.generation.number = 1;
  }
  [[nodiscard]] const Place& place() const override { return place_; }
  [[nodiscard]] Store& store() override { return *store_; }
  void on_generation_over(OnOver) override {}
  void progress(const StepProgress&) override {}
  Result<void> finished(Deadline) override { return {}; }

 private:
  Place place_;
  SharedStore shared_;
  std::unique_ptr<Store> store_;
};

class Recorder final : public Trainer {
 public:
  Expected expected;

 private:
  void handed_out(std::uint64_t, std::uint64_t, const std::vector<std::uint64_t>& weights) override {
    expected.parameters.push_back(weights);
  }
  void ended(const elrun::Outcome& outcome) override { expected.final_hash = outcome.state_hash; }
};

}  // namespace

const Expected& expected(const Plan& wanted) {
  static std::mutex mutex;
  static std::map<std::pair<std::uint64_t, std::uint64_t>, Expected> made;  // by the two fields in which plans of this world differ
  const std::lock_guard lock{mutex};
  const auto [at, fresh] = made.try_emplace({wanted.steps, wanted.slots()});
  if (!fresh) return at->second;
  const Bug planted = std::exchange(planted_bug, Bug::none);
  Plan plan = wanted;
  plan.placement = zero(0);
  plan.reduce = Reduce::exact;
  const ManualClock clock;
  PosixFiles files;
  Alone session{clock};
  const Log log{"expected", [](Level, std::string_view) {}};
  Recorder recorder;
  JobAccess::drive({.clock = clock, .files = files, .session = session, .log = log, .out = [](std::string_view) {}, .join = {}},
                   [&](Job& job) { recorder.train(job, plan, {}); });
  planted_bug = planted;
  return at->second = std::move(recorder.expected);
}

}  // namespace elrun::sim
