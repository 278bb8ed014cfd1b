#include "lib/job/gradients/leaf_stream.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

std::vector<std::vector<std::uint32_t>> deal_slots(std::uint32_t slots, std::uint32_t world) {
  std::vector<std::vector<std::uint32_t>> out(world);
  for (std::uint32_t slot = 0; slot < slots; ++slot) out[slot % world].push_back(slot);
  return out;
}

LeafStream::LeafStream(const Layout& layout, std::uint32_t slots, const ShardMap& shards, std::uint32_t rank, DType leaves,
                       SharedBuffers* shared_buffers)
    : memory_{shared_buffers != nullptr ? &shared_buffers->private_memory() : &host_memory()},
      units_{layout.units},
      slots_{slots},
      world_{shards.world()},
      rank_{rank},
      folds_{shards.folds},
      delivers_{shards.cuts != shards.folds},
      type_{leaves},
      shard_(layout.units.size()),
      leaves_{layout.gradients, *memory_},
      paging_{std::make_unique<std::mutex>()},
      open_(layout.units.size()),
      handed_(layout.units.size() * world_),
      here_(layout.units.size()),
      handed_by_(world_) {
  for (const Piece& p : pieces(layout, folds_[rank])) shard_[p.unit] = p, shard_elements_ += p.size();
  std::vector<std::uint32_t> all(slots);
  for (std::uint32_t slot = 0; slot < slots; ++slot) all[slot] = slot;
  schedule_ = fold_schedule(all, slots);
  ELRUN_ASSERT(schedule_.nodes.size() <= 1);
  // A leaf that is added to what is there needs no buffer of its own.
  for (std::uint32_t slot = 0; slot < slots; ++slot)
    depth_ = std::max(depth_, schedule_.buffer[slot] + (schedule_.merges[slot] == 0 ? 1 : 0));
  const std::uint64_t stack = depth_ * shard_elements_;
  stack_ =
      Arena<float>{stack, delivers_ && shared_buffers != nullptr ? shared_buffers->make(stack * sizeof(float)) : std::nullopt, *memory_};
  arrivals_ = PagedArena{world_ * shard_elements_, *memory_};
  if (!delivers_) return;
  const auto held = pieces(layout, shards.cuts[rank]);
  held_ = Arena<float>{elements(held), *memory_};
  own_ = common(pieces(layout, folds_[rank]), held);
  sums_ = deliver_sums(layout, shards, rank, {stack_.span(), Space::shard}, {held_.span(), Space::shard});
}

void LeafStream::put(std::span<const float> leaf, std::span<float> into) {
  memory_->copy(std::as_bytes(leaf), std::as_writable_bytes(into));
}
void LeafStream::put(std::span<const bf16> leaf, std::span<float> into) { memory_->to_float(leaf, into); }

/// Memory of leaves and arrivals comes and goes in here.
template <class Change>
void LeafStream::page(const Change& change) {
  const std::lock_guard lock{*paging_};
  change();
  in_use_max_ = std::max(in_use_max_, leaves_.held_bytes() + arrivals_.held_bytes());
}

void LeafStream::begin() {
  first_slot_ = 0;
  begin_micro_step();
  leaves_.release(0, leaves_.size());
  arrivals_.release(0, arrivals_.size());
}

void LeafStream::begin_micro_step() {
  std::ranges::fill(open_, std::uint8_t{0});
  std::fill(handed_.begin(), handed_.end(), false);
  std::ranges::fill(here_, 0u);
  std::ranges::fill(handed_by_, 0u);
}

std::uint32_t LeafStream::busy() const { return complete() ? 0 : std::min(world_, slots_ - first_slot_); }

void LeafStream::open(std::uint32_t unit) {
  open_[unit] = 1;
  page([&] { leaves_.hold(begin_of(unit), begin_of(unit) + units_[unit].trainable); });
  memory_->fill_with_zeros(
      std::as_writable_bytes(leaves_.span(begin_of(unit), units_[unit].trainable)));  // a page may be larger than a granule
}

void LeafStream::finish_leaf(std::uint32_t unit) {
  ELRUN_ASSERT(open_[unit] != 0);
  if (type_ != DType::bf16) return;
  const std::uint64_t begin = begin_of(unit), count = units_[unit].trainable;
  memory_->pack_to_bf16(leaves_.span(begin, count));
  page([&] { leaves_.release(begin + taken(count), begin + count); });
}

std::span<const std::byte> LeafStream::part_for(std::uint32_t unit, std::uint32_t rank) const {
  ELRUN_ASSERT(open_[unit] != 0);
  const LeafRange run = shard(units_[unit].trainable, folds_[rank]);
  return std::as_bytes(leaves_.span(begin_of(unit) + taken(run.begin), taken(run.end - run.begin)));
}

std::span<std::byte> LeafStream::arriving(std::uint32_t unit, std::uint32_t rank) {
  const std::uint64_t begin = rank * shard_elements_ + shard_[unit].place, count = taken(shard_[unit].size());
  page([&] { arrivals_.hold(begin, begin + count); });
  return std::as_writable_bytes(arrivals_.span(begin, count));
}

bool LeafStream::arrived(std::uint32_t unit, std::uint32_t rank) {
  if (rank >= busy() || handed_[unit * world_ + rank]) return false;
  handed_[unit * world_ + rank] = true;
  ++handed_by_[rank];
  if (rank == rank_) close(unit);
  if (++here_[unit] == busy()) fold(unit);
  return true;
}

/// What belongs to others was sent. What is this rank's own stays until all parts are here.
void LeafStream::close(std::uint32_t unit) {
  const std::uint64_t begin = begin_of(unit), end = begin + units_[unit].trainable;
  page([&] {
    leaves_.release(begin, begin + taken(shard_[unit].begin));
    leaves_.release(begin + taken(shard_[unit].end), end);
  });
}

void LeafStream::fold(std::uint32_t unit) {
  const Piece& mine = shard_[unit];
  const std::uint32_t ranks = busy();
  const std::uint64_t chunk = fold_chunk(memory_->device().kind);
  for (std::uint64_t begin = 0; begin < mine.size(); begin += chunk) {
    const std::uint64_t count = std::min(chunk, mine.size() - begin);
    const auto partial = [&](std::uint64_t i) { return stack_.span(i * shard_elements_ + mine.place + begin, count); };
    const auto take = [&](auto leaf, std::uint32_t slot) {
      std::uint64_t top = schedule_.buffer[slot];
      const std::uint32_t merges = schedule_.merges[slot];
      if (merges == 0) return put(leaf, partial(top));
      memory_->add_into(partial(--top), leaf);
      for (std::uint32_t m = 1; m < merges; ++m, --top) memory_->add_into(partial(top - 1), std::span<const float>{partial(top)});
    };
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const float* const leaf = r == rank_ ? leaves_.data() + begin_of(unit) : arrivals_.data() + r * shard_elements_ + mine.place;
      const std::uint64_t first = begin + (r == rank_ ? mine.begin : 0);
      if (type_ == DType::bf16) take(packed(leaf, first, count), first_slot_ + r);
      else take(std::span{leaf + first, count}, first_slot_ + r);
    }
  }
  page([&] {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const std::uint64_t begin = r * shard_elements_ + mine.place;
      if (r != rank_) arrivals_.release(begin, begin + mine.size());
    }
    if (rank_ < ranks) leaves_.release(begin_of(unit), begin_of(unit) + units_[unit].trainable);
  });
}

bool LeafStream::next() {
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit)
    if (units_[unit].trainable > 0 && here_[unit] != busy()) return false;
  begin_micro_step();
  first_slot_ += world_;
  return true;
}

Result<void> LeafStream::finish(JobWorld& world) {
  ELRUN_ASSERT(complete());
  if (!delivers_) return {};
  for (const Common& both : own_)
    put(std::span<const float>{stack_.span(both.a.place, both.a.size())}, held_.span(both.b.place, both.b.size()));
  return world.exchange_arrays(sums_.sends, sums_.receives);
}

std::uint64_t LeafStream::bytes() const { return (stack_.size() + held_.size()) * sizeof(float); }
std::uint64_t LeafStream::bytes_max() const {
  const std::lock_guard lock{*paging_};
  return bytes() + in_use_max_;
}

}  // namespace elrun::inline v0
