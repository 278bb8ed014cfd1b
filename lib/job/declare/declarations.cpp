#include "lib/job/declare/declarations.hpp"

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/declare/plan.hpp"

namespace elrun::inline v0 {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw Error{invalid(std::string{what})};
}

}  // namespace

void Declarations::configure(const Plan& plan, const CheckpointOptions& checkpoint) {
  require(!is_configured(), "configure is called twice");
  if (const auto wrong = problems(plan, checkpoint); !wrong.empty()) throw Error{invalid(wrong)};
  plan_ = plan;
  checkpoint_ = checkpoint;
}

UnitState& Declarations::add_unit(std::string_view name, Job::Impl* job) {
  require(is_configured(), "unit comes after configure()");
  require(!sealed_, "a unit is declared after seal(); declare all of them before");
  specs_.push_back({std::string{name}, {}});
  UnitState& unit = units_.emplace_back();
  unit.job = job;
  unit.index = unit_count() - 1;
  return unit;
}

TensorPlace& Declarations::add_tensor(UnitState& unit, std::string_view name, DType type, Shape shape, TensorOptions options) {
  require(!sealed_, "a tensor is declared after seal(); declare all of them before");
  UnitSpec& spec = specs_[unit.index];
  spec.tensors.push_back({std::string{name}, type, shape, options});
  unit.tensors.push_back({nullptr, nullptr, std::move(shape), fmt::format("{}/{}", spec.name, name), &unit, device_});
  return unit.tensors.back();
}

Layout Declarations::lay_out() const {
  require(is_configured(), "seal comes after configure()");
  require(!sealed_, "seal is called twice");
  if (const auto wrong = problems(specs_); !wrong.empty()) throw Error{invalid(wrong)};
  return elrun::lay_out(specs_);
}

void Declarations::point_at_weights(std::uint32_t unit, const UnitLayout& layout, void* trained, float* frozen) {
  auto& tensors = units_[unit].tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (specs_[unit].tensors[t].options.frozen) tensors[t].data = frozen + (layout.offsets[t] - layout.trainable);
    else tensors[t].data = trained == nullptr ? nullptr : static_cast<std::byte*>(trained) + layout.offsets[t] * size_of(layout.weights);
}

void Declarations::point_at_gradients(std::uint32_t unit, const UnitLayout& layout, float* gradient) {
  auto& tensors = units_[unit].tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (!specs_[unit].tensors[t].options.frozen) tensors[t].grad = gradient == nullptr ? nullptr : gradient + layout.offsets[t];
}

}  // namespace elrun::inline v0
