#pragma once
/// \file Job::Impl: conducts one job of one process. It decides what happens next, and hands each part what it needs; the parts own their state
/// and know neither each other's fields nor this class (README.md has the map). No globals: tests run a whole world of them in threads.

#include <algorithm>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <elrun/job.hpp>
#include <elrun/session.hpp>

#include "lib/job/arrays/program_streams.hpp"
#include "lib/job/commit/decided_steps.hpp"
#include "lib/job/commit/votes.hpp"
#include "lib/job/declare/declarations.hpp"
#include "lib/job/declare/device_class.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/gather/phase_rounds.hpp"
#include "lib/job/gather/unit_scopes.hpp"
#include "lib/job/gradients/reducer.hpp"
#include "lib/job/job_host.hpp"
#include "lib/job/open_slot.hpp"
#include "lib/job/open_step.hpp"
#include "lib/job/recover/generation_recovery.hpp"
#include "lib/job/recover/held_state.hpp"
#include "lib/job/revoked.hpp"
#include "lib/job/save/job_saves.hpp"
#include "lib/job/state/hash_beside.hpp"
#include "lib/job/state/host_state.hpp"
#include "lib/job/state/initial_values.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/job/state/shared_buffers.hpp"
#include "lib/job/straggler_watch.hpp"
#include "lib/job/times_spent.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// The state is gone, and there is no checkpoint: all members run the program from its beginning, in the same process.
struct BeginAgain {};

/// A part that outlives no world is made anew in `plan_world`; one that a generation ends is told in `rejoin`. More methods than 25, because it is what
/// users call: each call of Job, Step, Slot, Unit and UseScope is one. More fields than 15, because each is a part that another one does not know;
/// no flag is left beside them.
class [[gnu::visibility("hidden")]] Job::Impl {
 public:
  explicit Impl(JobHost job_host);
  ~Impl() { saves_.finish_copy(); }  // which reads the state

  void configure(const Plan& plan, const CheckpointOptions& checkpoint);
  UnitState& unit(std::string_view name) { return declared.add_unit(name, this); }
  void register_state(std::string_view name, std::span<std::byte> bytes);
  [[nodiscard]] std::string plan_table(std::uint32_t ranks, std::uint32_t ranks_per_node) const;
  void seal();
  Restored restore();
  std::optional<std::uint64_t> next_step();
  [[nodiscard]] std::vector<std::vector<std::uint64_t>> samples_ahead(std::size_t count) const;
  Evaluation evaluate(std::uint64_t count, const std::function<void(Slot&)>& forward);
  void take_slots() { step_.take_slots(world.over()); }
  Slot* first_slot();
  Slot* next_slot();
  StepResult apply(const AnyOptimizer& optimizer, const ApplyOptions& options);
  [[nodiscard]] Verification verify();
  void audit(double probability);
  void report(const Slot& slot, float loss, std::uint64_t tokens);
  void add(const Slot& slot, std::string_view name, double value);
  [[nodiscard]] bool is_revoked(const Slot& slot) const;
  void report(const Slot& slot, DeviceScalar loss, std::uint64_t tokens);
  /// `stream`: as the program named it. Returns what it means.
  Stream begin_use(UnitState & unit, Stream stream);
  Stream begin_gradient(UnitState & unit, Stream stream);
  /// What fails in it comes out of the next call that may throw.
  void end_use(UnitState & unit, bool gradient, Stream stream) noexcept;
  void read(const UnitState& unit, std::span<const std::byte> run, std::span<std::byte> to);
  void write(const UnitState& unit, std::span<const std::byte> from, std::span<std::byte> run);
  void write_rounded(const UnitState& unit, const TensorPlace& tensor, std::span<const float> values);
  [[nodiscard]] Stream stream() const { return streams_.jobs(); }
  void stop();
  void program_returned();
  void serve_to_the_end();

  /// The program was left by an exception in a slot that is revoked: nothing of it counts.
  [[nodiscard]] bool left_revoked_slot() const { return slot_.is_open() && world.over() && host.session.place().elastic; }
  /// The program runs again in this process, and `before` keeps what it held until seal().
  void go_on_from(std::unique_ptr<Impl> before);

  /// The first member that was there before, so that whoever prints knows what was printed last; else the first.
  [[nodiscard]] bool prints() const { return world.rank() == recovery_.settled().printer; }

  JobHost host;
  JobWorld world;
  Declarations declared{host.device};
  std::optional<Outcome> outcome;

 private:
  friend struct JobAccess;
  /// A world's shards, and this rank's place among them.
  struct Shards {
    ShardMap map;
    std::uint32_t rank = 0;
    [[nodiscard]] const Cut& mine() const { return map.cuts[rank]; }
  };

  void fetch_weights(std::uint32_t unit);
  void require_scopes_ended_well();
  bool settle_loss();
  [[nodiscard]] std::vector<Agreement> agreements() const;
  /// `put` writes to a tensor of the unit: behind the program's kernels, and before those to come.
  void write_in_order(const UnitState& unit, const std::function<void()>& put);
  [[nodiscard]] Memory& memory() const { return host.arrays != nullptr ? *host.arrays : host_memory(); }
  void require(bool holds, std::string_view what) const;
  [[nodiscard]] std::vector<std::uint32_t> guess_my_nodes() const;
  void allocate(Impl * before, Layout layout);
  [[nodiscard]] bool may_take_from(const Impl& before) const;
  void take_position(Impl & before);
  void show_to_peers();
  void plan_world(std::span<const std::uint32_t> nodes);
  [[nodiscard]] RankBytes held_bytes() const;
  void show_memory() const;
  [[nodiscard]] GradientReducer::Exchanges choose_exchanges();
  [[nodiscard]] const Plan& plan() const { return declared.plan(); }
  [[nodiscard]] bool gathers() const { return plan().placement.parameters != Sharding::replicated; }
  [[nodiscard]] bool streams() const { return reducer_.is_per_slot(); }
  [[nodiscard]] const std::vector<std::uint32_t>& my_slots() const { return reducer_.my_slots(); }
  void take_host_state(const std::vector<Aux>& aux);

  // Recovery, recovery.cpp.
  void rejoin();
  void enter();
  void meet();
  void settle();
  void share();
  void go_on_together();
  void wait_until_left();
  void keep_host_state();
  [[nodiscard]] MemberStatus status() const;
  [[nodiscard]] Restored restored() const;
  void drop_step();
  void load_or_begin(const std::string& lost);
  void open_saves(JobSaves::Then then);
  void receive_state();
  void take_position_of_giver();
  void move_host_state();
  // Evaluations, evaluations.cpp.
  bool compared_before_evaluation();
  Evaluation run_evaluation(std::uint64_t count, const std::function<void(Slot&)>* forward);
  bool run_evaluation_slot(std::uint64_t count, std::uint32_t index, const std::function<void(Slot&)>& forward);
  [[nodiscard]] std::vector<Aux> host_state() const;
  void end_without_steps();
  void finish();
  Result<void> audit_agrees();
  void close_slot();

  /// Where in the step the program is.
  [[nodiscard]] Phase phase() const;
  Result<void> exchange_votes(const Vote& mine);
  void compare_parameters(bool with_votes);
  void compare_now();
  /// Before parameters or moments change: a copy or a hash of them may be under way.
  void finish_readers() { saves_.finish_copy(), parameters_hash_.finish(); }
  void tell_of_straggler();
  bool reduce_and_vote();
  /// A constant of the job, never of the world.
  [[nodiscard]] float per_slot() const { return 1.0f / static_cast<float>(plan().slots()); }
  [[nodiscard]] float norm_of(const Decision& decision) const;
  void apply_decided();

  // What this member holds and knows, whatever the world.
  HostVariables variables_;
  HeldState held_;
  InitialValues initial_values_;
  DecidedSteps decided_;
  OpenStep step_;
  OpenSlot slot_;
  ProgramTimeout program_timeout_{host.clock, host.session, world};
  Departure departure_{host.session};
  TimesSpent times_;
  StragglerWatch stragglers_;
  JobSaves saves_{host, world, program_timeout_, departure_};
  SharedBuffers shared_buffers_{host.share, host.log, memory()};
  ArrayMeeting array_meeting_{host.device_groups, host.session, memory(), host.clock, host.log};
  ProgramStreams streams_{memory().stream()};
  std::optional<DeviceLosses> losses_;       // where tensors lie on a device
  std::vector<std::size_t> losses_to_come_;  // of which of this rank's slots
  std::exception_ptr scope_failed_;
  std::unique_ptr<Impl> before_;  // of the program's run before this one, until seal()
  // Of this generation,
  GenerationRecovery recovery_;
  // and of the world that was planned last.
  Shards shards_;
  ModelState state_;
  HashBeside parameters_hash_;  // of this generation's comparison
  GradientReducer reducer_;
  VoteExchange votes_;
  PhaseRounds rounds_{world, state_, reducer_, shards_.map};
  UnitScopes scopes_{declared, state_, reducer_, rounds_};
};

}  // namespace elrun::inline v0
