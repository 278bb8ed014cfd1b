#pragma once
/// \file UnitScopes: the scopes in which the program uses units. Before a scope the weights are gathered, where they are sharded; after the last
/// `use_grad` scope of a slot the leaf gradient is handed off, where gradients are exchanged per slot. In between, tensors have addresses.
///
/// What always holds:
/// * Of a sharded unit there is memory for all weights while a scope of it is open, while it is the one that is expected next, and else for this
///   rank's shard alone.
/// * What the program writes to weights counts where no slot is open from begin to end of the scope: in slots and evaluations rounds may read them at any time.
/// * At most one unit is expected next. A wrong guess is let go of at the next use, and where phases end.
///
/// Called by the job's thread. Scopes are counted here; who may begin one when is the conductor's to check. A scope's end waits for nobody.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/job/declare/declarations.hpp"
#include "lib/job/gather/phase_rounds.hpp"
#include "lib/job/gather/prefetch.hpp"
#include "lib/job/gradients/reducer.hpp"
#include "lib/job/state/initial_values.hpp"
#include "lib/job/state/model_state.hpp"

namespace elrun::inline v0 {

class UnitScopes {
 public:
  /// All outlive it.
  UnitScopes(Declarations& declared, ModelState& state, GradientReducer& reducer, PhaseRounds& rounds)
      : declared_{declared}, state_{state}, reducer_{reducer}, rounds_{rounds} {}
  /// All is allocated: tensors that lie here always get their addresses.
  void begin();

  // ---- slots

  void begin_slot(const Phase& phase);
  /// Throws Error where a `use_grad` scope is open: its end would hand the gradient off.
  void require_no_gradient_open(std::uint32_t slot) const;
  /// Gradients that are exchanged per step: units that had no part in the slot have a gradient of zeros. `own_slot`: as GradientReducer says.
  void begin_unused_gradients(std::optional<std::size_t> own_slot);
  /// Gradients that are exchanged per slot: leaves that no scope made in this slot are zeros, or half made, and final all the same.
  void finish_leaves(const Phase& slot, std::optional<std::size_t> own_slot);

  // ---- scopes

  /// A scope that begins now has to wait for weights of others.
  [[nodiscard]] bool fetches(std::uint32_t unit) const;
  /// Gathers the weights for a scope, if that is necessary. `served`: whether others serve this rank now; in evaluations they do anyway. False: the
  /// weights did not come, and what is in their memory is not specified.
  [[nodiscard]] bool fetch(std::uint32_t unit, const Phase& phase, bool served);
  /// Throws Error where a `use_grad` scope more in this slot is one more than the unit's tensors declare.
  void require_use_left(std::uint32_t unit, std::uint32_t slot) const;
  /// After `fetch`. `slot`: which of this rank's slots is open.
  void open(std::uint32_t unit, const Phase& phase, std::size_t slot);
  /// After `open`, for a `use_grad` scope.
  void open_gradient(std::uint32_t unit, const Phase& phase, std::optional<std::size_t> own_slot);
  /// `initial`: is told what the last scope of a sharded unit left.
  void close(std::uint32_t unit, bool gradient, InitialValues& initial);
  /// After the slots of the job's first step: the sentence for units that train and had no `use_grad` in this rank's slots, once. They are updated all the same.
  [[nodiscard]] std::optional<std::string> unused_line();
  /// Throws Error where ranks go through slots together and a scope is open, or one of bf16. `call`: "apply()".
  void require_all_closed(std::string_view call) const;

  // ---- where phases end: as PhaseRounds, and nothing is expected next any more

  [[nodiscard]] bool end_phase(const Phase& phase);
  [[nodiscard]] bool end_step(std::uint64_t step);
  /// Of what was expected to be used next, and was not. Nothing is on its way.
  void let_go_of_next();

 private:
  struct Counts {
    std::uint32_t in_slot = 0;         // use_grad scopes begun in this slot,
    std::uint32_t gradients_open = 0;  // those of them that have not ended,
    std::uint32_t open = 0;            // and scopes of any kind that have not
    bool had_gradient = false;         // a use_grad scope of it was opened in this world
    bool may_be_written = false;       // all weights are there, and no slot was open since the first of those scopes began
  };
  [[nodiscard]] const UnitLayout& layout(std::uint32_t unit) const { return state_.layout().units[unit]; }
  /// A scope that begins now gets memory with what the weights round to.
  [[nodiscard]] bool is_made(std::uint32_t unit) const;
  [[nodiscard]] bool comes_and_goes(std::uint32_t unit) const { return state_.parameters_are_sharded() || state_.rounds(unit); }
  void point_at_weights(std::uint32_t unit);
  void expect_after(std::uint32_t unit, const Phase& phase, std::size_t slot);
  void let_go(std::uint32_t unit);
  void open_leaf(std::uint32_t unit, const Phase& slot, std::optional<std::size_t> own_slot);
  void finish_leaf(std::uint32_t unit);
  Declarations& declared_;
  ModelState& state_;
  GradientReducer& reducer_;
  PhaseRounds& rounds_;
  std::vector<Counts> units_;
  PrefetchPredictor slot_order_, evaluation_order_;
  bool told_unused_ = false;
  std::optional<std::uint32_t> next_unit_;  // whose weights were asked for ahead, or stay for their next use
};

}  // namespace elrun::inline v0
