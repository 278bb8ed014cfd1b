#pragma once
/// \file Declarations: what the program declares before its first step: the plan, where checkpoints go, and units with their tensors. Core.
///
/// Units and their tensors are numbered in the order of their declaration. The program's views (`Tensor`) point at the TensorPlaces kept
/// here, so those never move. From `seal` on only the places change, with `point_at_weights` and `point_at_gradients`.
/// Called by the job's thread. A call out of order, and whatever is wrong with what is declared, throws Error (`invalid_argument`).

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/job.hpp>

#include "lib/job/declare/agreement.hpp"
#include "lib/job/declare/layout.hpp"

namespace elrun::inline v0 {

/// What a program's `Unit` points to.
struct UnitState {
  Job::Impl* job = nullptr;
  std::uint32_t index = 0;
  std::deque<TensorPlace> tensors;        // views hold addresses
  std::vector<Stream> program_streams{};  // of the scopes that are open
};

class Declarations {
 public:
  /// `device`: where tensors lie.
  explicit Declarations(Device device = {}) : device_{device} {}
  /// Once, before all else. Throws all problems at once.
  void configure(const Plan& plan, const CheckpointOptions& checkpoint);
  [[nodiscard]] bool is_configured() const { return plan_.has_value(); }
  /// Once configured.
  [[nodiscard]] const Plan& plan() const { return *plan_; }

  /// `job`: what calls of the program's handle go to.
  UnitState& add_unit(std::string_view name, Job::Impl* job);
  TensorPlace& add_tensor(UnitState& unit, std::string_view name, DType type, Shape shape, TensorOptions options);

  /// Throws all problems of the units at once.
  [[nodiscard]] Layout lay_out() const;
  /// Nothing is declared after it.
  void seal() { sealed_ = true; }
  [[nodiscard]] bool is_sealed() const { return sealed_; }

  [[nodiscard]] const std::vector<UnitSpec>& units() const { return specs_; }
  [[nodiscard]] std::uint32_t unit_count() const { return static_cast<std::uint32_t>(specs_.size()); }
  [[nodiscard]] const std::string& name_of_unit(std::uint32_t unit) const { return specs_[unit].name; }
  /// What all members must have alike.
  [[nodiscard]] std::vector<Agreement> agreements() const { return elrun::agreements(*plan_, checkpoint_, specs_); }

  /// Where the unit's elements begin that train, and those that are frozen. `trained` is null while it is not there: what is frozen always is.
  void point_at_weights(std::uint32_t unit, const UnitLayout& layout, void* trained, float* frozen);
  /// `gradient`: where the unit's begins; null: none is made now.
  void point_at_gradients(std::uint32_t unit, const UnitLayout& layout, float* gradient);

 private:
  Device device_;
  std::optional<Plan> plan_;
  CheckpointOptions checkpoint_;
  std::vector<UnitSpec> specs_;
  std::deque<UnitState> units_;  // as specs_; handles hold addresses
  bool sealed_ = false;
};

}  // namespace elrun::inline v0
