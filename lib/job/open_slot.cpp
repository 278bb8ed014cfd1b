#include "lib/job/open_slot.hpp"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

Slot& OpenSlot::begin(Job::Impl* job, std::uint64_t generation, std::uint32_t index, RandomStream rng) {
  SlotAccess::fill(slot_, job, ++serial_, generation, index, rng);
  sums_.clear();
  open_ = true, reported_ = false;
  loss_to_come_.reset();
  return slot_;
}

void OpenSlot::report(const Slot& slot, float loss, std::uint64_t tokens) {
  if (!is(slot)) throw Error{invalid("a slot was reported after its end")};
  if (reported_) throw Error{invalid("a slot was reported twice")};
  reported_ = true;
  loss_ = loss;
  tokens_ = tokens;
}

void OpenSlot::add(const Slot& slot, std::string_view name, double value, bool evaluating) {
  if (!is(slot)) throw Error{invalid("add() is called after the slot's end")};
  if (!evaluating)
    throw Error{invalid("add() is for the slots of evaluate(); what the slots of a step compute is its gradient and its loss")};
  if (name.empty() || name.size() > evaluation_sum_name_max)
    throw Error{invalid(fmt::format("add(name, value): a name has 1 to {} bytes, and not {}", evaluation_sum_name_max, name.size()))};
  if (!std::isfinite(value)) throw Error{invalid(fmt::format("add('{}', {}): a sum is of finite numbers", name, value))};
  const auto at = sums_.find(name);
  if (at == sums_.end() && sums_.size() == evaluation_sums_max)
    throw Error{invalid(fmt::format("add('{}', {}): an evaluation has {} sums at most", name, value, evaluation_sums_max))};
  if (at == sums_.end()) sums_.emplace(name, value);
  else at->second += value;
}

}  // namespace elrun::inline v0
