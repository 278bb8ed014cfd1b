#pragma once
/// \file Job::Impl: conducts one job of one process. It decides what happens next, and hands each part what it needs; the parts own their state
/// and know neither each other's fields nor this class (README.md has the map). No globals: tests run a whole world of them in threads.

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <elrun/job.hpp>
#include <elrun/session.hpp>

#include "lib/job/commit/decided_steps.hpp"
#include "lib/job/commit/votes.hpp"
#include "lib/job/declare/declarations.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/gather/comm_thread.hpp"
#include "lib/job/gather/prefetch.hpp"
#include "lib/job/gather/round_exchange.hpp"
#include "lib/job/gradients/reducer.hpp"
#include "lib/job/job_host.hpp"
#include "lib/job/open_slot.hpp"
#include "lib/job/open_step.hpp"
#include "lib/job/recover/held_state.hpp"
#include "lib/job/recover/settle.hpp"
#include "lib/job/recover/state_transfer.hpp"
#include "lib/job/revoked.hpp"
#include "lib/job/save/job_saves.hpp"
#include "lib/job/state/host_state.hpp"
#include "lib/job/state/initial_values.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/job/state/shard_map.hpp"
#include "lib/job/state/shared_buffers.hpp"
#include "lib/job/state/update.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Of one unit.
struct ScopeCounts {
  std::uint32_t in_slot = 0;         // use_grad scopes begun in this slot,
  std::uint32_t gradients_open = 0;  // those of them that have not ended,
  std::uint32_t open = 0;            // and scopes of any kind that have not
};

/// The state is gone, and there is no checkpoint: all members run the program from its beginning, in the same process.
struct BeginAgain {};

/// More methods than 25, because it is what users call: each call of Job, Step, Slot, Unit and UseScope is a method here. More fields than a
/// dozen: beside the parts it still keeps the scopes of units (sharing.cpp), and how far this member has come in its generation and in its step.
class [[gnu::visibility("hidden")]] Job::Impl {
 public:
  explicit Impl(JobHost job_host);

  void configure(const Plan& plan, const CheckpointOptions& checkpoint);
  UnitState& unit(std::string_view name) { return declared.add_unit(name, this); }
  void register_state(std::string_view name, std::span<std::byte> bytes);
  [[nodiscard]] std::string plan_table(std::uint32_t ranks, std::uint32_t ranks_per_node) const;
  void seal();
  bool restore();
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
  void begin_use(std::uint32_t unit);
  void begin_gradient(std::uint32_t unit);
  void end_use(std::uint32_t unit, bool gradient);
  void stop();
  void program_returned();
  void serve_to_the_end();

  /// The program was left by an exception in a slot that is revoked: nothing of it counts.
  [[nodiscard]] bool left_revoked_slot() const { return slot_.is_open() && world.over() && host.session.place().elastic; }
  /// The program runs again in this process, and `before` keeps what it held until seal().
  void go_on_from(std::unique_ptr<Impl> before);

  /// The first member that was there before, so that whoever prints knows what was printed last; else the first.
  [[nodiscard]] bool prints() const { return world.rank() == settled_.printer; }

  JobHost host;
  JobWorld world;
  Declarations declared;
  std::optional<Outcome> outcome;

 private:
  friend struct JobAccess;
  /// How far this member has come in its generation.
  enum class Stage : std::uint8_t {
    joining,
    settled,  ///< It is known which step was decided last.
    shared,   ///< All have the parameters and moments of that step; newcomers lack host state until the others come to next_step().
    ready,
  };

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
  [[nodiscard]] bool gathers() const { return plan().placement.parameters != Spread::replicated; }
  [[nodiscard]] bool streams() const { return reducer_.is_per_slot(); }
  /// Whether ranks go through their slots together.
  [[nodiscard]] bool in_phases() const { return gathers() || streams(); }
  /// Whether what ranks do for each other in their slots happens while they compute.
  [[nodiscard]] bool overlaps() const { return plan().overlap && in_phases() && world.size() > 1; }
  [[nodiscard]] const std::vector<std::uint32_t>& my_slots() const { return reducer_.my_slots(); }
  void take_host_state(const std::vector<Aux>& aux);

  // Recovery, recovery.cpp.
  void rejoin();
  void enter();
  void meet();
  void settle();
  void share();
  void go_on_together();
  void keep_host_state();
  [[nodiscard]] MemberStatus status() const;
  void drop_step();
  void load_or_begin();
  void open_saves();
  void receive_state(const StateTransfer& from);
  void move_host_state(const StateTransfer& from);
  // Evaluations, evaluations.cpp.
  const Evaluation& remember(const Evaluation& evaluation);
  std::optional<Evaluation> evaluation_decided_elsewhere();
  bool somebody_evaluates(bool i_do);
  Evaluation run_evaluation(std::uint64_t count, const std::function<void(Slot&)>* forward);
  bool run_evaluation_slot(std::uint64_t count, std::uint32_t index, const std::function<void(Slot&)>& forward);
  [[nodiscard]] std::vector<Aux> host_state() const;
  void end_without_steps();
  void finish();
  Result<void> audit_agrees();
  void close_slot();

  // What ranks do for each other in the middle of user code, sharing.cpp.
  [[nodiscard]] Phase phase() const;
  std::optional<Heard> round(const Need& said);
  bool serve(std::optional<std::uint32_t> unit);
  bool leave_phase(const Phase& phase);
  bool end_phases();
  bool end_phase(const Phase& phase);
  bool end_slot(const Phase& slot);
  bool end_phases_of_step();
  void expect_after(std::uint32_t unit);
  void let_go_of_next();
  void let_go(std::uint32_t unit);
  void open_leaf(std::uint32_t unit, const Phase& slot);
  void finish_leaves(const Phase& slot);
  void finish_leaf(std::uint32_t unit);
  void no_scope_open(std::string_view call) const;
  void point_at_weights(std::uint32_t unit);
  void point_at_gradients(std::uint32_t unit, float* space);
  Result<void> exchange_votes(const Vote& mine);
  bool reduce_and_vote();
  /// A constant of the job, never of the world.
  [[nodiscard]] float per_slot() const { return 1.0f / static_cast<float>(plan().slots()); }
  [[nodiscard]] float norm_of(const Decision& decision) const;
  void apply_decided();

  std::vector<ScopeCounts> scopes_;  // by unit
  HostVariables variables_;
  Stage stage_ = Stage::joining;
  bool joined_running_ = false;  // restore() found others that were there before, and next_step() was not called yet
  HeldState held_;
  InitialValues initial_values_;

  Absence absence_{host.clock, host.session, world};
  Departure departure_{host.session};
  JobSaves saves_{host, world, absence_, departure_};
  SharedBuffers shared_buffers_;
  ModelState state_;
  GradientReducer reducer_;
  VoteExchange votes_;
  RoundExchange round_;
  PrefetchPredictor slot_order_, evaluation_order_;
  std::optional<std::uint32_t> next_unit_;  // whose weights were asked for ahead, or stay for their next use
  std::size_t phases_ = 0;                  // most slots that any rank has

  [[nodiscard]] const Cut& my_cut() const { return shard_map_.cuts[planned_for_]; }
  ShardMap shard_map_;                  // of the world that plan_world planned for ...
  std::uint32_t planned_for_ = 0;       // ... as this rank
  std::vector<MemberStatus> statuses_;  // of this generation, once it is settled
  StateTransfer transfer_;              // likewise, once it is shared
  Settled settled_;                     // likewise

  std::size_t slots_through_ = 0;  // of this step, slots that this rank is through with, where all go through them together
  DecidedSteps decided_;
  OpenStep step_;
  OpenSlot slot_;

  std::unique_ptr<Impl> before_;  // of the program's run before this one, until seal()

  CommThread comm_thread_;  // the last member: its thread ends before what its rounds use
};

}  // namespace elrun::inline v0
