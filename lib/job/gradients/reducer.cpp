#include "lib/job/gradients/reducer.hpp"

#include <algorithm>
#include <utility>

#include "lib/device/memory.hpp"
#include "lib/job/declare/assign.hpp"

namespace elrun::inline v0 {

GradientReducer::GradientReducer(const Layout& layout, const ShardMap& shards, std::uint32_t rank, std::uint32_t slots, Exchanges exchanges,
                                 Reduce reduce, DType leaves, SharedBuffers& shared_buffers, RoundsMemory& rounds, GradientBuffers* before,
                                 const std::vector<bool>& computes)
    : memory_{&shared_buffers.private_memory()}, exchanges_{exchanges}, rank_{rank}, space_{layout.gradients} {
  slots_ = is_per_slot()      ? deal_slots(slots, shards.world())
           : computes.empty() ? assign_slots(slots, shards.world())
                              : assign_slots(slots, computes);
  for (const UnitLayout& unit : layout.units) units_.push_back({unit.gradient_begin, unit.gradient_begin + unit.trainable});
  if (is_per_slot() && before != nullptr) *before = {};
  if (is_per_slot()) stream_ = LeafStream{layout, slots, shards, rank, leaves, shared_buffers, rounds};
  else gradients_ = Gradients{layout, slots_, shards, rank, reduce, leaves, &shared_buffers, before};
  norm_ = NormTree{layout, shards, rank, space(), *memory_};
}

std::size_t GradientReducer::slots_of_busiest() const {
  return std::ranges::max(slots_, {}, [](const auto& slots) { return slots.size(); }).size();
}

void GradientReducer::begin_step() {
  if (is_per_slot()) stream_.begin();
}

float* GradientReducer::made_in(std::uint32_t unit, std::optional<std::size_t> slot) const {
  return is_per_slot() ? stream_.leaf(unit) : whole(slot) + units_[unit].begin;
}

void GradientReducer::begin_unit(std::uint32_t unit, std::optional<std::size_t> slot) {
  if (is_per_slot()) return stream_.open(unit);
  const LeafRange run = units_[unit];
  memory_->fill_with_zeros(std::as_writable_bytes(std::span{whole(slot) + run.begin, run.end - run.begin}));
}

std::uint64_t GradientReducer::hash_of(std::optional<std::size_t> slot) const {
  return memory_->hash(std::as_bytes(std::span{whole(slot), space_}), 0, 0);
}

void GradientReducer::end_slot(std::size_t slot) {
  if (!is_per_slot()) gradients_.fold_leaf(slot);
}

std::vector<SharedBuffer> GradientReducer::shared() const {
  if (!is_per_slot()) return gradients_.shared();
  return stream_.shared() ? std::vector{*stream_.shared()} : std::vector<SharedBuffer>{};
}

Result<void> GradientReducer::reduce(JobWorld& world) {
  return is_per_slot() ? stream_.finish(world) : gradients_.reduce(world, norm_.squares());
}

std::vector<std::size_t> GradientReducer::norm_nodes() const {
  std::vector<std::size_t> out;
  for (std::uint32_t r = 0; r < slots_.size(); ++r) out.push_back(norm_.nodes(r));
  return out;
}

void GradientReducer::fold_norm(std::span<float> nodes) {
  if (is_per_slot()) norm_.square(stream_.folded());
  norm_.fold_shard(nodes);
}

std::uint64_t GradientReducer::bytes() const { return is_per_slot() ? stream_.bytes() : gradients_.buffers() * space_ * sizeof(float); }
std::uint64_t GradientReducer::exchange_bytes() const { return gradients_.exchange_bytes(); }
std::uint64_t GradientReducer::in_use_bytes_max() const { return is_per_slot() ? stream_.bytes_max() - stream_.bytes() : 0; }

}  // namespace elrun::inline v0
