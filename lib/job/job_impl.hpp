#pragma once
/// \file Job::Impl: one job of one process, as its user's calls go through it. What it is made of is in job_parts.hpp; each conductor is the place for what happens in one kind of moment. No
/// globals: tests run a whole world of them in threads.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <elrun/job.hpp>

#include "lib/job/commit/step_end.hpp"
#include "lib/job/evaluate/evaluation_pass.hpp"
#include "lib/job/evaluate/evaluations.hpp"
#include "lib/job/job_end.hpp"
#include "lib/job/job_parts.hpp"
#include "lib/job/recover/generation_change.hpp"
#include "lib/job/recover/parameter_comparison.hpp"
#include "lib/job/slot_loop.hpp"
#include "lib/job/unit_uses.hpp"
#include "lib/job/world_setup.hpp"

namespace elrun::inline v0 {

class [[gnu::visibility("hidden")]] Job::Impl {
 public:
  explicit Impl(JobHost host) : parts{std::move(host), this} {}

  void configure(const Plan& plan, const CheckpointOptions& checkpoint);
  UnitState& unit(std::string_view name) { return parts.require_callable(), parts.declared.add_unit(name, this); }
  void register_state(std::string_view name, std::span<std::byte> bytes);
  [[nodiscard]] std::string plan_table(std::uint32_t ranks, std::uint32_t ranks_per_node) const;
  void seal();
  Restored restore();
  std::optional<std::uint64_t> next_step();
  void stop();

  /// The program was left by an exception in a slot that is revoked: nothing of it counts.
  [[nodiscard]] bool left_revoked_slot() const { return parts.slot.is_open() && parts.world.over() && parts.host.session.place().elastic; }
  /// The program runs again in this process, and `before` keeps what it held until seal().
  void go_on_from(std::unique_ptr<Impl> before);
  /// The first member that was there before, so that whoever prints knows what was printed last; else the first.
  [[nodiscard]] bool prints() const { return parts.world.rank() == parts.recovery.settled().printer; }

  JobParts parts;
  WorldSetup setup{parts};
  EvaluationPass evaluation_pass{parts};
  GenerationChange change{parts, setup, evaluation_pass};
  ParameterComparison comparison{parts};
  Evaluations evaluations{parts, evaluation_pass, change, comparison};
  SlotLoop slots{parts};
  UnitUses uses{parts};
  StepEnd step_end{parts, slots, change, comparison};
  JobEnd end{parts, change};

 private:
  [[nodiscard]] bool may_take_from(const JobParts& before) const;
  [[nodiscard]] bool declares_the_same(const JobParts& before) const;
  void keep_memory_checkpoints(JobParts & before);
  void take_position(JobParts & before);
  [[nodiscard]] Restored restored() const;
  void begin_step();
  void take_memory_checkpoint(bool beside);

  std::unique_ptr<Impl> before_;  // of the program's run before this one, until seal()
};

}  // namespace elrun::inline v0
