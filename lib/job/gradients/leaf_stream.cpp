#include "lib/job/gradients/leaf_stream.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

void put(Memory& memory, std::span<const float> leaf, std::span<float> into) {
  memory.copy(std::as_bytes(leaf), std::as_writable_bytes(into));
}
void put(Memory& memory, std::span<const bf16> leaf, std::span<float> into) { memory.to_float(leaf, into); }

}  // namespace

std::vector<std::vector<std::uint32_t>> deal_slots(std::uint32_t slots, std::uint32_t world) {
  std::vector<std::vector<std::uint32_t>> out(world);
  for (std::uint32_t slot = 0; slot < slots; ++slot) out[slot % world].push_back(slot);
  return out;
}

LeafStream::LeafStream(const Layout& layout, std::uint32_t slots, const ShardMap& shards, std::uint32_t rank, DType leaves,
                       SharedBuffers& shared_buffers, RoundsMemory& rounds)
    : memory_{&shared_buffers.private_memory()},
      rounds_{&rounds},
      slots_{slots},
      folds_{shards.folds},
      delivers_{shards.cuts != shards.folds},
      shapes_{.units = {}, .world = shards.world(), .rank = rank, .type = leaves},
      places_(layout.units.size()),
      open_(layout.units.size()),
      handed_(layout.units.size() * shards.world()),
      here_(layout.units.size()),
      handed_by_(shards.world()) {
  for (const UnitLayout& unit : layout.units)
    shapes_.units.push_back({.leaf = {unit.gradient_begin, unit.gradient_begin + unit.trainable}, .mine = {}});
  for (const Piece& p : pieces(layout, folds_[rank]))
    shapes_.units[p.unit].mine = {p.begin, p.end}, places_[p.unit] = p.place, shard_elements_ += p.size();
  leaves_ = make_leaf_memory(shapes_, *memory_, rounds);
  std::vector<std::uint32_t> all(slots);
  for (std::uint32_t slot = 0; slot < slots; ++slot) all[slot] = slot;
  schedule_ = fold_schedule(all, slots);
  ELRUN_ASSERT(schedule_.nodes.size() <= 1);
  // A leaf that is added to what is there needs no buffer of its own.
  for (std::uint32_t slot = 0; slot < slots; ++slot)
    depth_ = std::max(depth_, schedule_.buffer[slot] + (schedule_.merges[slot] == 0 ? 1 : 0));
  const std::uint64_t stack = depth_ * shard_elements_;
  stack_ = Arena<float>{stack, delivers_ ? shared_buffers.make(stack * sizeof(float), SharedBuffers::InChildren::absent) : std::nullopt,
                        *memory_};
  if (!delivers_) return;
  const auto held = pieces(layout, shards.cuts[rank]);
  held_ = Arena<float>{elements(held), *memory_};
  own_ = common(pieces(layout, folds_[rank]), held);
  sums_ = deliver_sums(layout, shards, rank, {stack_.span(), Space::shard}, {held_.span(), Space::shard});
}

void LeafStream::begin() {
  first_slot_ = 0;
  begin_micro_step();
  leaves_->clear();
}

void LeafStream::begin_micro_step() {
  std::ranges::fill(open_, std::uint8_t{0});
  std::fill(handed_.begin(), handed_.end(), false);
  std::ranges::fill(here_, 0u);
  std::ranges::fill(handed_by_, 0u);
}

std::uint32_t LeafStream::busy() const { return complete() ? 0 : std::min(world(), slots_ - first_slot_); }

void LeafStream::open(std::uint32_t unit) {
  open_[unit] = 1;
  leaves_->open(unit);
  memory_->fill_with_zeros(std::as_writable_bytes(whole_leaf(unit)));
}

void LeafStream::finish_leaf(std::uint32_t unit) {
  ELRUN_ASSERT(open_[unit] != 0);
  if (shapes_.type != DType::bf16) return;
  memory_->pack_to_bf16(whole_leaf(unit));
  leaves_->finish(unit);
}

std::span<const std::byte> LeafStream::part_for(std::uint32_t unit, std::uint32_t rank) const {
  ELRUN_ASSERT(open_[unit] != 0);
  const LeafRange run = shard(shapes_.units[unit].size(), folds_[rank]);
  return std::as_bytes(std::span<const float>{leaves_->leaf(unit) + shapes_.taken(run.begin), shapes_.taken(run.end - run.begin)});
}

std::span<std::byte> LeafStream::arriving(std::uint32_t unit, std::uint32_t rank) {
  return std::as_writable_bytes(std::span{leaves_->arriving(unit, rank), shapes_.taken(shapes_.units[unit].part())});
}

bool LeafStream::arrived(std::uint32_t unit, std::uint32_t rank) {
  if (rank >= busy() || handed_[unit * world() + rank]) return false;
  handed_[unit * world() + rank] = true;
  ++handed_by_[rank];
  if (rank == shapes_.rank) leaves_->sent(unit);
  if (++here_[unit] == busy()) fold(unit);
  return true;
}

void LeafStream::fold(std::uint32_t unit) {
  Memory& memory = rounds_->get();
  const std::uint64_t part = shapes_.units[unit].part(), most = fold_chunk(memory.device().kind);
  for (std::uint64_t begin = 0; begin < part; begin += most) {
    const std::uint64_t count = std::min(most, part - begin);
    const auto partial = [&](std::uint64_t i) { return stack_.span(i * shard_elements_ + places_[unit] + begin, count); };
    const auto take = [&](auto leaf, std::uint32_t slot) {
      std::uint64_t top = schedule_.buffer[slot];
      const std::uint32_t merges = schedule_.merges[slot];
      if (merges == 0) return put(memory, leaf, partial(top));
      memory.add_into(partial(--top), leaf);
      for (std::uint32_t m = 1; m < merges; ++m, --top) memory.add_into(partial(top - 1), std::span<const float>{partial(top)});
    };
    for (std::uint32_t r = 0; r < busy(); ++r) {
      const float* const leaf = leaves_->part(unit, r);
      if (shapes_.type == DType::bf16) take(packed(leaf, begin, count), first_slot_ + r);
      else take(std::span{leaf + begin, count}, first_slot_ + r);
    }
  }
  leaves_->folded(unit);
}

bool LeafStream::next() {
  for (std::uint32_t unit = 0; unit < shapes_.units.size(); ++unit)
    if (shapes_.units[unit].size() > 0 && here_[unit] != busy()) return false;
  begin_micro_step();
  first_slot_ += world();
  return true;
}

Result<void> LeafStream::finish(JobWorld& world) {
  ELRUN_ASSERT(complete());
  if (!delivers_) return {};
  for (const Common& both : own_)
    put(*memory_, std::span<const float>{stack_.span(both.a.place, both.a.size())}, held_.span(both.b.place, both.b.size()));
  return world.exchange_arrays(sums_.sends, sums_.receives);
}

std::uint64_t LeafStream::bytes() const { return (stack_.size() + held_.size()) * sizeof(float); }
std::uint64_t LeafStream::bytes_max() const { return bytes() + leaves_->bytes_max(); }

}  // namespace elrun::inline v0
