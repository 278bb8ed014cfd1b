#include "lib/job/state/model_state.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/convert.hpp"
#include "kernels/state_hash.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t windows = 64, window = 16384;  // elements

/// `count` windows of them, an equal distance apart. `first_word`: of all of them.
void add_sample(std::vector<HashedRun>& out, std::span<const float> values, std::size_t count, std::uint64_t first_word,
                std::uint64_t sample) {
  if (values.size() <= count * window) return out.push_back({std::as_bytes(values), first_word});
  constexpr std::size_t word = sizeof(std::uint64_t) / sizeof(float);
  const std::size_t apart = values.size() / count, shift = Mix{}(sample, first_word) % (apart - window + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = (i * apart + shift) / word * word;
    out.push_back({std::as_bytes(values.subspan(begin, window)), first_word + begin / word});
  }
}

}  // namespace

ModelState::ModelState(Layout layout, const Placement& placement, Optimizer optimizer, SharedBuffers& shared_buffers)
    : memory_{&shared_buffers.private_memory()}, layout_{std::move(layout)}, placement_{placement}, optimizer_{optimizer} {
  parameters_ = make_parameters(layout_, parameters_are_sharded(), shared_buffers);
  rounded_ = RoundedUnits{layout_, *memory_};
  values_given_.resize(layout_.units.size());
  std::uint64_t frozen = 0;
  for (const UnitLayout& unit : layout_.units) frozen = std::max(frozen, unit.used - std::min(unit.used, unit.trainable));
  frozen_zeros_ = Arena<float>{frozen, *memory_};
}

// ---- memory and cut

void ModelState::allocate(Cut cut) { allocate(cut, Contents::zeros); }

void ModelState::allocate(Cut cut, Contents moments) {
  cut_ = cut;
  parameters_->begin_shard(cut);
  const std::uint64_t count = elements(pieces(layout_, cut));
  give_back(std::exchange(moments_, {}));
  for (std::size_t m = 0; m < moments_of(optimizer_).size(); ++m) moments_.push_back(new_moment(count, moments));
}

Arena<float> ModelState::new_moment(std::uint64_t count, Contents contents) {
  auto fits = take_fitting(reserved_, count, std::numeric_limits<std::uint64_t>::max());
  if (!fits) {
    reserved_.clear();  // before more is taken
    return Arena<float>{count, *memory_};
  }
  if (contents == Contents::zeros) memory_->fill_with_zeros(std::as_writable_bytes(fits->span()));
  return std::move(*fits);
}

void ModelState::give_back(std::vector<Arena<float>>&& moments) {
  if (reserves_) std::ranges::move(moments, std::back_inserter(reserved_));
  moments.clear();
}

void ModelState::reserve_moments(bool reserve) {
  reserves_ = reserve;
  if (!reserve) reserved_.clear();
}

void ModelState::allocate_anew(Cut cut, Contents moments) {
  allocate(cut, moments);
  parameters_->keep_only(cut_);
}

void ModelState::begin_recut(Cut to) {
  old_ = Old{cut_, std::move(moments_), {}};
  allocate(to, Contents::unspecified);
}

void ModelState::finish_recut() {
  auto old = std::exchange(old_, std::nullopt);
  if (!old) return;
  recut_in_ = old->awaits;
  give_back(std::move(old->moments));
  parameters_->keep_only(cut_);
}

void ModelState::await_recut(const Generation& in) {
  if (old_) old_->awaits = in;
}

HeldCut ModelState::held_cut() const { return old_ ? HeldCut{old_->cut, recut_in_, cut_, old_->awaits} : HeldCut{cut_, recut_in_, {}, {}}; }

void ModelState::undo_recut() {
  if (!old_) return;
  give_back(std::exchange(moments_, std::move(old_->moments)));
  cut_ = old_->cut;
  old_.reset();
  parameters_->keep_only(cut_);
}

std::uint64_t ModelState::moments_bytes() const {
  std::uint64_t bytes = 0;
  for (const Arena<float>& m : moments_) bytes += m.span().size_bytes();
  return bytes;
}

// ---- units whose parameters are sharded, or whose weights are bf16

void ModelState::make_room(std::size_t units) {
  parameters_->make_room(units);
  rounded_.make_room(parameters_are_sharded() ? units : 1);
}

void ModelState::hold_unit(std::uint32_t unit) {
  if (!rounds(unit)) return parameters_->hold(unit);
  const bool held = rounded_.holds(unit);
  if (!held) rounded_.hold(unit);
  if (held && parameters_are_sharded()) return;  // others' parts may be there
  if (!parameters_are_sharded()) rounded_.round({.unit = unit, .end = layout_.units[unit].trainable}, parameters_->unit(unit));
  else
    for (const Piece& p : parameters_->own_pieces(unit)) rounded_.round(p, parameters_->own(p));
}

void ModelState::keep_written(std::uint32_t unit) {
  if (!rounds(unit)) parameters_->keep_written(unit);
}

void ModelState::let_go_of_unit(std::uint32_t unit) {
  if (rounds(unit)) rounded_.let_go(unit);
  else parameters_->let_go(unit);
}

std::span<std::byte> ModelState::seen(std::uint32_t unit) const {
  return rounds(unit) ? std::as_writable_bytes(rounded_.unit(unit)) : std::as_writable_bytes(parameters_->unit(unit));
}

void ModelState::write_rounded(std::uint32_t unit, std::uint64_t begin, std::span<const float> values) {
  std::vector<bf16> rounded(values.size());
  to_bf16(values, rounded);
  memory_->write(std::as_bytes(std::span{rounded}), std::as_writable_bytes(rounded_.unit(unit).subspan(begin, values.size())));
  const auto write = [&](std::uint64_t from, std::uint64_t until, std::span<float> masters) {
    const std::uint64_t first = std::max(from, begin), last = std::min(until, begin + values.size());
    if (first < last)
      memory_->write(std::as_bytes(values.subspan(first - begin, last - first)),
                     std::as_writable_bytes(masters.subspan(first - from, last - first)));
  };
  if (!parameters_are_sharded()) write(0, layout_.units[unit].trainable, parameters_->unit(unit));
  else
    for (const Piece& p : parameters_->own_pieces(unit)) write(p.begin, p.end, parameters_->own(p));
  // Masters that differ may round to the same: ranks that gave other values are told apart by this.
  std::vector<std::uint64_t> words((values.size() + 1) / 2);
  std::ranges::copy(std::as_bytes(values), std::as_writable_bytes(std::span{words}).begin());
  values_given_[unit] += host_memory().hash(std::as_bytes(std::span{words}), begin, salt_of("param"));
}

std::span<float> ModelState::weights(std::uint32_t unit, Cut cut) const {
  const LeafRange run = shard(layout_.units[unit].trainable, cut);
  if (run.begin == run.end) return {};
  for (const Piece& p : parameters_->own_pieces(unit))
    if (p.begin <= run.begin && run.end <= p.end) return parameters_->own(p).subspan(run.begin - p.begin, run.end - run.begin);
  return parameters_->unit(unit).subspan(run.begin, run.end - run.begin);
}

std::span<const std::byte> ModelState::weights_to_give(std::uint32_t unit, Cut cut, Memory& in) {
  const std::span<const float> masters = weights(unit, cut);
  return rounds(unit) ? std::as_bytes(rounded_.given(masters, in)) : std::as_bytes(masters);
}

std::span<std::byte> ModelState::weights_to_take(std::uint32_t unit, Cut cut) const {
  if (!rounds(unit)) return std::as_writable_bytes(weights(unit, cut));
  const LeafRange run = shard(layout_.units[unit].trainable, cut);
  return std::as_writable_bytes(rounded_.unit(unit).subspan(run.begin, run.end - run.begin));
}

std::uint64_t ModelState::hash_of_unit(std::uint32_t unit) const { return memory_->hash(seen(unit), 0, 0) + values_given_[unit]; }

// ---- the step

void ModelState::plan_world(const ShardMap& shards, std::uint32_t rank, Space gradient) {
  gather_ = {};
  if (parameters_are_sharded()) rounded_.make_room_to_give(shards.world() - 1, largest_part(layout_, shards.cuts[rank], DType::bf16));
  if (!optimizer_is_whole() && !parameters_are_sharded()) {
    // Parameters are whole on every rank, and updated by those who hold the rest of the state: once a step, each copy is put together.
    gather_ = {std::vector<SendList>(shards.world()), std::vector<ReceiveList>(shards.world())};
    const PiecesIn all{parameters_->pages().span(), Space::parameters};
    const auto given = [&](std::uint32_t giver, std::uint32_t taker) {
      const auto cut = shards.gives(giver, taker);
      return cut ? pieces(layout_, *cut) : std::vector<Piece>{};
    };
    for (std::uint32_t r = 0; r < shards.world(); ++r) {
      if (r == rank) continue;
      for (const Piece& p : given(rank, r)) gather_.sends[r].push_back(std::as_bytes(part(all, p)));
      for (const Piece& p : given(r, rank)) gather_.receives[r].push_back(std::as_writable_bytes(part(all, p)));
    }
  }
  std::vector<UpdateRun> runs;
  for (const Piece& p : pieces(layout_, shards.cuts[rank]))
    for (const UnitLayout::DecayRun& run : layout_.units[p.unit].decay_runs) {
      const std::uint64_t begin = std::max(run.begin, p.begin), end = std::min(run.end, p.end);
      if (begin >= end) continue;
      const std::uint64_t skip = begin - p.begin;
      const std::uint64_t parameter = begin_in(parameters_->shard().space, p) + skip;
      runs.push_back({parameter, p.place + skip, begin_in(gradient, p) + skip, end - begin, run.decay ? 1u : 0u});
    }
  update_tiles_ = count_tiles(runs);
  updates_ = Arena<UpdateRun>{runs.size(), *memory_};
  memory_->write(std::as_bytes(std::span{runs}), std::as_writable_bytes(updates_.span()));
}

void ModelState::update(const AnyOptimizer& optimizer, float lr, float scale, std::uint64_t t, const float* gradient) {
  UpdateArrays arrays{.parameter = parameters_->shard().memory.data(), .gradient = gradient};
  static_assert(std::size(UpdateArrays{}.moments) == moments_max);
  for (std::size_t m = 0; m < moments_.size(); ++m) arrays.moments[m] = moments_[m].data();
  memory_->update(arrays, {updates_.data(), static_cast<std::uint32_t>(updates_.size()), update_tiles_}, step_of(optimizer, lr, scale, t));
  whole_ = optimizer_is_whole() || parameters_are_sharded();
}

// ---- hash, save, load

std::uint64_t ModelState::hash_part(const ShardMap& shards, std::uint32_t rank) const {
  const auto sum = [this](std::string_view kind, std::span<const float> run, std::uint64_t element) {
    return memory_->hash(std::as_bytes(run), element * sizeof(float) / sizeof(std::uint64_t), salt_of(kind));
  };
  std::uint64_t out = 0;
  for (std::uint32_t u = 0; u < layout_.units.size(); ++u) {
    const std::span<const float> frozen = parameters_->frozen(u);
    const LeafRange mine = shard(frozen.size(), {shards.world(), rank});
    out +=
        sum("param", frozen.subspan(mine.begin, mine.end - mine.begin), layout_.units[u].begin + layout_.units[u].trainable + mine.begin);
  }
  for (const Piece& p : primary_pieces(layout_, shards, rank)) {
    out += sum("param", parameters_->own(p), p.parameter);
    for (std::size_t m = 0; m < moments_.size(); ++m)
      out += sum(moments_of(optimizer_)[m], moments_[m].span(p.place, p.size()), p.parameter);
  }
  return out;
}

std::vector<HashedRun> ModelState::frozen_parameters() const {
  std::vector<HashedRun> out;
  for (std::uint32_t u = 0; u < layout_.units.size(); ++u) out.push_back({std::as_bytes(parameters_->frozen(u)), layout_.units[u].begin});
  return out;
}

std::vector<HashedRun> ModelState::replicated_parameters() const {
  if (!parameters_are_sharded()) return {{std::as_bytes(parameters_->pages().span()), 0}};
  return frozen_parameters();
}

std::vector<HashedRun> ModelState::replicated_sample(std::uint64_t sample) const {
  std::vector<HashedRun> out;
  if (!parameters_are_sharded()) {
    add_sample(out, parameters_->pages().span(), windows, 0, sample);
    return out;
  }
  const std::size_t units = layout_.units.size(), each = std::max<std::size_t>(windows / std::max<std::size_t>(units, 1), 1);
  for (std::uint32_t u = 0; u < units; ++u) add_sample(out, parameters_->frozen(u), each, layout_.units[u].begin, sample);
  return out;
}

void ModelState::zero_padding() {
  const auto zero = [this](std::span<float> run) { memory_->fill_with_zeros(std::as_writable_bytes(run)); };
  for (const Piece& p : pieces(layout_, cut_)) {
    const std::uint64_t used = std::clamp(layout_.units[p.unit].used, p.begin, p.end) - p.begin;
    zero(parameters_->own(p).subspan(used));
    for (const Arena<float>& moment : moments_) zero(moment.span(p.place + used, p.size() - used));
  }
  for (std::uint32_t u = 0; u < layout_.units.size(); ++u) {
    const UnitLayout& unit = layout_.units[u];
    if (!parameters_are_sharded()) zero(parameters_->unit(u).subspan(std::min(unit.used, unit.trainable)));
    zero(parameters_->frozen(u).subspan(std::max(unit.used, unit.trainable) - unit.trainable));
  }
}

std::vector<Fragment> ModelState::to_save(const ShardMap& shards, std::uint32_t rank) {
  // Where the state is in several copies, each writes its part of it.
  return fragments(optimizer_is_whole() ? pieces(layout_, cut_) : primary_pieces(layout_, shards, rank), true);
}

std::vector<Fragment> ModelState::to_load() { return fragments(pieces(layout_, cut_), false); }

std::vector<Fragment> ModelState::fragments(const std::vector<Piece>& shard, bool with_frozen_moments) {
  std::vector<Fragment> out;
  const auto add = [&](std::string_view kind, std::uint64_t unit, std::uint64_t begin, std::uint64_t end, float* at, bool replicated) {
    if (begin < end) out.push_back({std::string{kind}, unit, begin, end, std::as_writable_bytes(std::span{at, end - begin}), replicated});
  };
  for (std::uint32_t u = 0; u < layout_.units.size(); ++u) {
    const UnitLayout& unit = layout_.units[u];
    const std::uint64_t whole = parameters_are_sharded() ? unit.trainable : 0;  // is on every rank from here on
    add("param", u, whole, unit.used, (parameters_are_sharded() ? parameters_->frozen(u) : parameters_->unit(u)).data(), true);
    for (const std::string_view kind : moments_of(optimizer_))
      if (with_frozen_moments) add(kind, u, unit.trainable, unit.used, frozen_zeros_.data(), true);
  }
  for (const Piece& p : shard) {
    const std::uint64_t end = std::min(p.end, layout_.units[p.unit].used);
    if (parameters_are_sharded()) add("param", p.unit, p.begin, end, parameters_->own(p).data(), false);
    for (std::size_t m = 0; m < moments_.size(); ++m)
      add(moments_of(optimizer_)[m], p.unit, p.begin, end, moments_[m].data() + p.place, optimizer_is_whole());
  }
  return out;
}

StateMove ModelState::transfer(const StateTransfer& plan, std::span<const MemberStatus> statuses, const ShardMap& shards,
                               std::uint32_t rank) const {
  const auto size = static_cast<std::uint32_t>(statuses.size());
  StateMove out{{std::vector<SendList>(size), std::vector<ReceiveList>(size)}, {}};
  const std::vector<Arena<float>>& before = old_ ? old_->moments : moments_;
  std::vector<std::uint32_t> givers;  // of what is frozen
  for (std::uint32_t r = 0; r < size; ++r)
    if (plan.held[r] && !plan.newcomers[r]) givers.push_back(r);  // programs may have written to it since a newcomer got it
  const auto floats = [](const Arena<float>& arena, const Piece& at) { return arena.span(at.place, at.size()); };
  /// What `giver` gives `taker`, in the same order on both sides: of each piece that is given, `wanted` is as it lies in the taker's shard.
  const auto each = [&](std::uint32_t giver, std::uint32_t taker, const std::vector<Piece>& given, const auto& whole, const auto& sharded,
                        const auto& frozen) {
    const bool lacks_all = !plan.held[taker].has_value();
    if (!parameters_are_sharded() && (lacks_all || !statuses[taker].whole_parameters))
      for (const Piece& p : given) whole(p);
    if (lacks_all || *plan.held[taker] != shards.cuts[taker])
      for (const auto& [p, wanted] : common(given, pieces(layout_, shards.cuts[taker]))) sharded(p, wanted);
    if (lacks_all && std::ranges::find(givers, giver) != givers.end())
      for (const std::span<float> run : part_of_frozen(givers, giver)) frozen(run);
  };
  const auto mine = plan.held[rank] ? pieces(layout_, *plan.held[rank]) : std::vector<Piece>{};
  const auto keep = [&](const Piece& had, const Piece& wanted) {
    const auto copies = [&](std::span<const float> from, std::span<float> to) {
      if (from.data() != to.data()) out.kept.push_back({std::as_bytes(from), std::as_writable_bytes(to)});
    };
    if (parameters_are_sharded()) copies(parameters_->own_before(had), parameters_->own(wanted));
    for (std::size_t k = 0; k < moments_.size(); ++k) copies(floats(before[k], had), floats(moments_[k], wanted));
  };
  for (std::uint32_t other = 0; other < size; ++other) {
    const auto send = [&](std::span<const float> run) { out.exchange.sends[other].push_back(std::as_bytes(run)); };
    each(
        rank, other, share_of(layout_, plan.held, other, rank),
        [&](const Piece& p) {
          if (other != rank) send(parameters_->own(p));
        },
        [&](const Piece& p, const Piece& wanted) {
          const Piece had = common(mine, {p}).front().a;
          if (other == rank) return keep(had, wanted);
          if (parameters_are_sharded()) send(parameters_->own_before(had));
          for (const Arena<float>& moment : before) send(floats(moment, had));
        },
        send);
  }
  const auto to_me = *share_out(layout_, plan.held, rank);
  for (std::uint32_t other = 0; other < size; ++other) {
    if (other == rank) continue;
    const auto receive = [&](std::span<float> run) { out.exchange.receives[other].push_back(std::as_writable_bytes(run)); };
    each(
        other, rank, to_me[other], [&](const Piece& p) { receive(parameters_->own(p)); },
        [&](const Piece&, const Piece& wanted) {
          if (parameters_are_sharded()) receive(parameters_->own(wanted));
          for (const Arena<float>& moment : moments_) receive(floats(moment, wanted));
        },
        receive);
  }
  return out;
}

std::vector<std::span<float>> ModelState::part_of_frozen(std::span<const std::uint32_t> givers, std::uint32_t giver) const {
  const Cut part{static_cast<std::uint32_t>(givers.size()), static_cast<std::uint32_t>(std::ranges::find(givers, giver) - givers.begin())};
  std::vector<std::span<float>> out;
  for (std::uint32_t u = 0; u < layout_.units.size(); ++u) {
    const UnitLayout& unit = layout_.units[u];
    const std::uint64_t values = unit.used - std::min(unit.used, unit.trainable);
    const LeafRange run = elrun::shard(unit.size - unit.trainable, part);
    if (run.begin < values) out.push_back(parameters_->frozen(u).subspan(run.begin, std::min(run.end, values) - run.begin));
  }
  return out;
}

Delivery ModelState::transfer_frozen(std::span<const std::uint32_t> givers, std::span<const std::uint32_t> takers, std::uint32_t world,
                                     std::uint32_t rank) const {
  Delivery out{std::vector<SendList>(world), std::vector<ReceiveList>(world)};
  for (const std::uint32_t giver : givers)
    for (const std::uint32_t taker : takers) {
      if (giver != rank && taker != rank) continue;
      for (const std::span<float> run : part_of_frozen(givers, giver))
        if (giver == rank) out.sends[taker].push_back(std::as_bytes(run));
        else out.receives[giver].push_back(std::as_writable_bytes(run));
    }
  return out;
}

void ModelState::copy(std::span<const StateMove::Kept> kept) const {
  for (const StateMove::Kept& run : kept) memory_->copy(run.from, run.to);
}

}  // namespace elrun::inline v0
