#pragma once
/// \file JobParts: what one job of one process is made of. Each part owns its state and knows only the parts that it was made with.
///
/// Conductors (README.md has the map) borrow all of them: each is the one place for what happens in one kind of moment, and says in which order the parts take part. What is here besides is what
/// several conductors ask of several parts.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <elrun/job.hpp>
#include <elrun/session.hpp>

#include "lib/base/failure.hpp"
#include "lib/job/arrays/array_meeting.hpp"
#include "lib/job/arrays/program_streams.hpp"
#include "lib/job/commit/decided_steps.hpp"
#include "lib/job/commit/votes.hpp"
#include "lib/job/declare/declarations.hpp"
#include "lib/job/gather/phase_rounds.hpp"
#include "lib/job/gather/unit_scopes.hpp"
#include "lib/job/gradients/reducer.hpp"
#include "lib/job/job_host.hpp"
#include "lib/job/open_slot.hpp"
#include "lib/job/open_step.hpp"
#include "lib/job/recover/generation_recovery.hpp"
#include "lib/job/recover/held_state.hpp"
#include "lib/job/recover/loss_reserve.hpp"
#include "lib/job/save/job_saves.hpp"
#include "lib/job/save/memory_checkpoints.hpp"
#include "lib/job/state/hash_beside.hpp"
#include "lib/job/state/host_state.hpp"
#include "lib/job/state/initial_values.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/job/state/shared_buffers.hpp"
#include "lib/job/straggler_watch.hpp"
#include "lib/job/times_spent.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// What a call of the job's user must keep to.
inline void require(bool holds, std::string_view what) {
  if (!holds) throw Error{invalid(std::string{what})};
}

/// A list, and no class: it has more fields than 15, because each is a part. A part that outlives no world is made anew in `WorldSetup::plan_world`; one that a generation ends is told in
/// `GenerationChange::rejoin`. Used by the job's thread.
struct JobParts {
  /// A world's shards, this rank's place among them, and which ranks run slots.
  struct Shards {
    ShardMap map;
    std::uint32_t rank = 0;
    std::vector<bool> computes;  // by rank
    [[nodiscard]] const Cut& mine() const { return map.cuts[rank]; }
    [[nodiscard]] bool all_compute() const { return std::ranges::all_of(computes, std::identity{}); }
  };

  /// `job`: what the handles that users hold call.
  JobParts(JobHost job_host, Job::Impl* job)
      : handle{job}, host{std::move(job_host)}, world{host.session, host.join, {host.arrays, &host.clock, host.one_thread}} {}
  ~JobParts() { saves.finish_copy(), world.give_up_beside(); }  // which read the state
  JobParts(const JobParts&) = delete;
  JobParts& operator=(const JobParts&) = delete;

  /// What each call of the program begins with, where it may throw. Throws Error (`refused`) in a child that was forked from the process
  /// whose job this is: parts of the state are that one's memory. Throws BeginAgain where that was thrown before, and the program caught it;
  /// after eight such calls BeginAgainNow, and after a hundred it ends the process.
  void require_callable() const;
  /// Throws BeginAgain: this job is over for the program, which runs again with another one.
  [[noreturn]] void begin_again();
  [[nodiscard]] bool is_forked() const { return ::getpid() != process; }
  [[nodiscard]] const Plan& plan() const { return declared.plan(); }
  [[nodiscard]] Memory& memory() const { return host.arrays != nullptr ? *host.arrays : host_memory(); }
  [[nodiscard]] bool gathers() const { return plan().placement.parameters != Sharding::replicated; }
  [[nodiscard]] bool is_per_slot() const { return reducer.is_per_slot(); }
  [[nodiscard]] const std::vector<std::uint32_t>& my_slots() const { return reducer.my_slots(); }
  /// A constant of the job, never of the world.
  [[nodiscard]] float per_slot() const { return 1.0f / static_cast<float>(plan().slots()); }
  /// Where in the step the program is.
  [[nodiscard]] Phase phase() const;
  /// The program's variables, and how far the job is.
  [[nodiscard]] std::vector<Aux> host_state() const;
  void take_host_state(const std::vector<Aux>& aux);
  /// What the program changes from here on is put back, should the step not be decided.
  void keep_host_state();
  /// Before parameters or moments change: a copy or a hash of them may be under way, or an exchange that reads them. One that fails has ended the generation.
  void finish_readers() { saves.finish_copy(), parameters_hash.finish(), (void)world.finish_beside(); }
  /// All that this member is to hold of the state is here, also what travels beside slots. Before moments are read. False: the generation is over, and part of it may be missing.
  [[nodiscard]] bool await_state() { return world.finish_beside().ok() && !world.over(); }
  /// Throws what a scope's end failed of, for that itself may not throw.
  void require_scopes_ended_well() const;
  /// Throws Error where the program caught what came out of an evaluation, whose slot is open still.
  void require_evaluations_ended() const;
  /// The loss that the open slot reported is there, where it came from a device. False: the generation is over.
  [[nodiscard]] bool await_loss();

  Job::Impl* const handle;
  const int process = ::getpid();
  JobHost host;
  JobWorld world;
  Declarations declared{host.device};
  std::optional<Outcome> outcome;
  bool begins_again = false;       // BeginAgain was thrown
  mutable int calls_too_late = 0;  // since
  // What this member holds and knows, whatever the world.
  HostVariables variables;
  HeldState held;
  InitialValues initial_values;
  DecidedSteps decided;
  OpenStep step;
  OpenSlot slot;
  ProgramTimeout program_timeout{host.clock, host.session, world};
  Departure departure{host.session};
  TimesSpent times;
  StragglerWatch stragglers;
  JobSaves saves{host, world, program_timeout, departure};
  MemoryCheckpoints memory_checkpoints;
  SharedBuffers shared_buffers{host.share, host.log, memory()};
  ArrayMeeting array_meeting{host.device_groups, host.session, memory(), host.clock, host.log};
  ProgramStreams streams{memory().stream()};
  RoundsMemory rounds_memory{memory()};
  std::optional<DeviceLosses> losses;       // where tensors lie on a device
  std::vector<std::size_t> losses_to_come;  // of which of this rank's slots
  std::exception_ptr scope_failure;
  // Of this generation,
  GenerationRecovery recovery;
  // and of the world that was planned last.
  Shards shards;
  ModelState state;
  HashBeside parameters_hash;  // of this generation's comparison
  GradientReducer reducer;
  LossReserve loss_reserve{shared_buffers, host.loss_reserve_min};
  VoteExchange votes;
  PhaseRounds rounds{world, state, reducer, shards.map, rounds_memory};
  UnitScopes scopes{declared, state, reducer, rounds};
};

}  // namespace elrun::inline v0
