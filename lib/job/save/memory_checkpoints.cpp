#include "lib/job/save/memory_checkpoints.hpp"

#include <algorithm>
#include <memory>
#include <new>

#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"
#include "lib/job/recover/state_transfer.hpp"
#include "lib/job/revoked.hpp"
#include "lib/job/state/delivery.hpp"
#include "lib/job/state/host_state.hpp"

namespace elrun::inline v0 {
namespace {

/// The arrays of a shard, one after the other: parameters, then each moment.
class ShardArrays {
 public:
  ShardArrays() = default;
  ShardArrays(std::span<float> all, std::uint64_t elements) : all_{all}, elements_{elements} {}
  [[nodiscard]] std::span<float> array(std::size_t kind, const Piece& at) const {
    return all_.subspan(kind * elements_ + at.place, at.size());
  }

 private:
  std::span<float> all_;
  std::uint64_t elements_ = 0;
};

/// Runs of a Memory as lists for the host transport. What lies on a device goes through memory of the host.
class HostLists {
 public:
  HostLists(Memory& memory, std::uint32_t world) : memory_{memory}, out{std::vector<SendList>(world), std::vector<ReceiveList>(world)} {}
  void send(std::uint32_t to, std::span<const float> run) {
    std::span<const std::byte> bytes = std::as_bytes(run);
    if (!on_host()) {
      ByteVector& copy = staged_.emplace_back(bytes.size());
      memory_.read(bytes, copy);
      bytes = copy;
    }
    out.sends[to].push_back(bytes);
  }
  void receive(std::uint32_t from, std::span<float> run) {
    std::span<std::byte> bytes = std::as_writable_bytes(run);
    if (!on_host()) {
      ByteVector& copy = staged_.emplace_back(bytes.size());
      arriving_.emplace_back(copy, bytes);
      bytes = copy;
    }
    out.receives[from].push_back(bytes);
  }
  [[nodiscard]] bool on_host() const { return memory_.device().kind == DeviceKind::host; }
  /// What is sent out of it.
  [[nodiscard]] std::vector<ByteVector> take_staged() { return std::move(staged_); }
  /// What has arrived goes where it belongs.
  void finish() const {
    for (const auto& [from, to] : arriving_) memory_.write(from, to);
  }

 private:
  Memory& memory_;
  std::vector<ByteVector> staged_;
  std::vector<std::pair<std::span<const std::byte>, std::span<std::byte>>> arriving_;

 public:
  Delivery out;
};

/// Peers may have as much to send to another rank as to this one, over one line.
void exchange(JobWorld& world, const Delivery& lists, std::uint64_t bytes_of_state) {
  const Duration before = world.timeout();
  world.set_timeout(std::max(before, time_for(bytes_of_state)));
  const auto done = world.exchange(lists.sends, lists.receives);
  world.set_timeout(before);
  expect(world, done);
}

std::uint64_t state_bytes(const ModelState& state) {
  return (state.layout().parameters + state.moments() * state.layout().gradients) * sizeof(float);
}

/// What does not train is where it was made: each holder gives those that have none a part. A member that holds a part of a checkpoint has it.
void move_frozen(HostLists& lists, const ModelState& state, const std::vector<std::optional<Cut>>& held, std::uint32_t rank) {
  std::vector<std::uint32_t> givers;
  for (std::uint32_t r = 0; r < held.size(); ++r)
    if (held[r]) givers.push_back(r);
  for (std::uint32_t g = 0; g < givers.size(); ++g)
    for (std::uint32_t taker = 0; taker < held.size(); ++taker) {
      if (held[taker] || (givers[g] != rank && taker != rank)) continue;
      for (std::uint32_t u = 0; u < state.layout().units.size(); ++u) {
        const std::span<float> frozen = state.frozen(u);
        const LeafRange run = shard(frozen.size(), {static_cast<std::uint32_t>(givers.size()), g});
        const std::span<float> part = frozen.subspan(run.begin, run.end - run.begin);
        if (part.empty()) continue;
        if (taker == rank) lists.receive(givers[g], part);
        else lists.send(taker, part);
      }
    }
}

std::vector<std::optional<Cut>> all_held(const std::vector<Cut>& cuts) { return {cuts.begin(), cuts.end()}; }

/// From this rank's part of a checkpoint, and those of others, into the state.
struct Restoring {
  const ModelState& state;
  ShardArrays mine;
  std::uint32_t rank;

  /// Of array `kind`, where it lies in the state.
  [[nodiscard]] std::span<float> place(std::size_t kind, const Piece& p) const {
    return kind == 0 ? state.parameter(p) : state.moment(kind - 1).subspan(p.place, p.size());
  }
  /// Arrays from `begin` on, until `end`. `kept`: what this rank gives itself.
  void move(const Handover& plan, std::size_t begin, std::size_t end, HostLists& lists, std::vector<StateMove::Kept>& kept) const {
    for (std::uint32_t other = 0; other < plan.gives.size(); ++other) {
      for (const Common& run : plan.gives[other])
        for (std::size_t k = begin; k < end && other != rank; ++k) lists.out.sends[other].push_back(std::as_bytes(mine.array(k, run.a)));
      for (const Common& run : plan.gets[other])
        for (std::size_t k = begin; k < end; ++k)
          if (other == rank) kept.push_back({std::as_bytes(mine.array(k, run.a)), std::as_writable_bytes(place(k, run.b))});
          else lists.receive(other, place(k, run.b));
    }
  }
};

/// All get all parameters, but those who have them.
Handover parameters_to_move(const ModelState& state, const CompleteCheckpoint& from, const std::vector<bool>& have_parameters,
                            std::uint32_t rank) {
  Handover plan = hand_over(state.layout(), from.held, std::vector<Cut>(from.held.size()), rank);
  for (std::uint32_t r = 0; r < have_parameters.size(); ++r)
    if (have_parameters[r]) plan.gives[r].clear();
  if (have_parameters[rank]) std::ranges::fill(plan.gets, std::vector<Common>{});
  return plan;
}

/// What is much larger than needed is given back: it is from a much smaller world. After the loss of one worker a part is twice as large at most, and a granule of each unit.
bool fits(const Arena<float>& arena, std::uint64_t count) { return arena.capacity() >= count && arena.capacity() / 3 <= count; }

/// Of `size` elements; with room for more where the machine has it.
Arena<float> with_room(std::uint64_t room, std::uint64_t size) {
  try {
    Arena<float> out{room};
    out.resize(size);
    return out;
  } catch (const std::bad_alloc&) {
    if (room == size) throw;
  }
  return Arena<float>{size};
}

}  // namespace

bool MemoryCheckpoints::is_due(std::uint64_t step, std::uint32_t world, bool before_save) const {
  if (every_ == 0 || step == 0 || world == 1) return false;
  return !is_taken_in_this_world_ || ((step % every_ == 0 || before_save) && held_.back().what.step != step);
}

bool MemoryCheckpoints::may_come_beside(std::uint64_t step, const std::optional<CompleteCheckpoint>& older, bool overlap) const {
  if (is_taken_in_this_world_) return overlap;
  return older && step - std::min(step, older->step) <= every_;
}

std::vector<HeldCheckpoint> MemoryCheckpoints::held() const {
  std::vector<HeldCheckpoint> out;
  for (const Held& held : held_) out.push_back(held.what);
  if (!newest_is_here_) out.pop_back();
  return out;
}

std::uint64_t MemoryCheckpoints::bytes() const {
  std::uint64_t bytes = spare_.bytes();
  for (const ByteVector& staged : staged_) bytes += staged.size();
  for (const Held& held : held_) bytes += held.size * sizeof(float);
  return bytes;
}

std::uint64_t MemoryCheckpoints::memory_bytes() const {
  std::uint64_t elements = spare_.capacity();
  for (const Held& held : held_) elements += held.elements.capacity();
  return elements * sizeof(float);
}

/// The next one needs some at once, and new memory takes longer than what is copied into it.
void MemoryCheckpoints::keep_memory(Arena<float>&& unneeded) {
  if (unneeded.capacity() > spare_.capacity()) spare_ = std::move(unneeded);
}

void MemoryCheckpoints::keep(const std::optional<CompleteCheckpoint>& whole) {
  if (!newest_is_here_) keep_memory(std::move(held_.back().elements)), held_.pop_back();
  newest_is_here_ = true;
  std::erase_if(held_, [&](Held& held) {
    if (whole && held.what.step == whole->step && held.what.taken_in == whole->taken_in) return false;
    keep_memory(std::move(held.elements));
    return true;
  });
}

void MemoryCheckpoints::take(JobWorld& world, const ModelState& state, const ShardMap& shards, std::span<const std::uint32_t> nodes,
                             Taking taking) {
  const std::uint32_t rank = world.rank();
  const std::vector<Cut> cuts = shard_map(Sharding::mirrored, nodes).cuts;
  const std::uint64_t part = elements(pieces(state.layout(), cuts[rank])), size = part * (1 + state.moments());
  Handover plan = hand_over(state.layout(), all_held(shards.cuts), cuts, rank);
  HostLists lists{state.memory(), world.size()};
  /// What this rank holds of it, array by array.
  const auto each = [&state](const Common& run, const auto& use) {
    use(state.parameter(run.a), 0);
    for (std::size_t k = 0; k < state.moments(); ++k) use(state.moment(k).subspan(run.a.place, run.a.size()), 1 + k);
  };
  for (std::uint32_t other = 0; other < world.size(); ++other)
    for (const Common& run : plan.gives[other])
      if (other != rank) each(run, [&](std::span<const float> from, std::size_t) { lists.send(other, from); });
  if (ELRUN_PLANTED(old_checkpoint_goes_early)) held_.clear();
  is_taken_in_this_world_ = true;
  Held& next = held_.emplace_back(
      Held{{taking.step, world.membership().generation, cuts[rank]}, size, std::exchange(spare_, {}), std::move(taking.host_state)});
  newest_is_here_ = false;
  std::shared_ptr<Arena<float>> unneeded;
  std::uint64_t room = 0;
  if (fits(next.elements, size)) {
    next.elements.resize(size);
  } else {
    unneeded = std::make_shared<Arena<float>>(std::exchange(next.elements, {}));
    room = std::max(size, taking.room ? taking.room() : 0);
  }
  /// Memory for it, what this rank has of it itself, and where the rest arrives.
  const auto begin = [&state, &next, plan = std::move(plan), unneeded = std::move(unneeded), room, part, size, rank,
                      each](std::vector<ReceiveList>& receives) {
    if (room > 0) {
      *unneeded = {};  // before more is taken
      next.elements = with_room(room, size);
    }
    const ShardArrays mine{next.elements.span(), part};
    for (std::uint32_t other = 0; other < plan.gets.size(); ++other)
      for (const Common& run : plan.gets[other])
        if (other != rank)
          for (std::size_t k = 0; k <= state.moments(); ++k) receives[other].push_back(std::as_writable_bytes(mine.array(k, run.b)));
        else
          each(run, [&](std::span<const float> from, std::size_t k) {
            state.memory().read(std::as_bytes(from), std::as_writable_bytes(mine.array(k, run.b)));
          });
  };
  if (!taking.beside) {
    begin(lists.out.receives);
    exchange(world, lists.out, state_bytes(state));
    newest_is_here_ = true;
    return;
  }
  world.set_timeout(std::max(world.timeout(), time_for(state_bytes(state))));
  const auto arrived = [this] { newest_is_here_ = true; };
  if (lists.on_host()) {
    std::function<void(std::vector<ReceiveList>&)> prepare = begin;
    if (ELRUN_PLANTED(checkpoint_counts_before_it_came)) std::exchange(prepare, {})(lists.out.receives), newest_is_here_ = true;
    return world.exchange_beside(std::move(lists.out.sends), std::move(lists.out.receives), Call::checkpoint, arrived, prepare);
  }
  begin(lists.out.receives);  // a device's memory works in the order of this thread
  staged_ = lists.take_staged();
  world.exchange_beside(std::move(lists.out.sends), std::move(lists.out.receives), Call::checkpoint, arrived);
}

void MemoryCheckpoints::all_have_theirs() {
  staged_.clear();
  if (held_.size() > 1) spare_ = std::exchange(held_.front().elements, {}), held_.erase(held_.begin());
}

const MemoryCheckpoints::Held* MemoryCheckpoints::part_of(const CompleteCheckpoint& from) const {
  const auto held =
      std::ranges::find_if(held_, [&](const Held& h) { return h.what.step == from.step && h.what.taken_in == from.taken_in; });
  return held == held_.end() ? nullptr : &*held;
}

std::vector<Aux> MemoryCheckpoints::restore(JobWorld& world, const ModelState& state, const ShardMap& shards,
                                            const CompleteCheckpoint& from, const std::vector<bool>& have_parameters, Moments moments) {
  const std::uint32_t rank = world.rank();
  const auto giver =
      static_cast<std::uint32_t>(std::ranges::find_if(from.held, [](const auto& cut) { return cut.has_value(); }) - from.held.begin());
  const Held* const held = part_of(from);
  HostLists lists{state.memory(), world.size()};
  const Restoring restoring{state, held == nullptr ? ShardArrays{} : ShardArrays{held->elements.span(), held->size / (1 + state.moments())},
                            rank};
  const bool whole = !state.parameters_are_sharded(), later = moments == Moments::later;
  ELRUN_ASSERT(!later || (whole && lists.on_host()));
  std::vector<StateMove::Kept> kept;
  if (whole) restoring.move(parameters_to_move(state, from, have_parameters, rank), 0, 1, lists, kept);
  if (!later) restoring.move(hand_over(state.layout(), from.held, shards.cuts, rank), whole ? 1 : 0, 1 + state.moments(), lists, kept);
  for (const StateMove::Kept& run : kept) state.memory().write(run.from, run.to);
  move_frozen(lists, state, from.held, rank);
  // Where parameters are whole, all get all of them, from the holders.
  const auto holders = static_cast<std::uint64_t>(std::ranges::count_if(from.held, [](const auto& cut) { return cut.has_value(); }));
  exchange(world, lists.out, state_bytes(state) * ((world.size() + holders - 1) / holders));
  lists.finish();
  const auto parts = expect(world, world.all_gather(giver == rank ? encode(held->host_state) : ByteVector{}));
  moments_wait_ = lacks_moments_ = later;
  return held != nullptr ? held->host_state : expect(world, decode_host_state(parts[giver]));
}

void MemoryCheckpoints::restore_moments_beside(JobWorld& world, const ModelState& state, const ShardMap& shards,
                                               const CompleteCheckpoint& from) {
  if (!std::exchange(moments_wait_, false)) return;
  const Held* const held = part_of(from);
  HostLists lists{state.memory(), world.size()};
  std::vector<StateMove::Kept> kept;
  const Restoring restoring{state, held == nullptr ? ShardArrays{} : ShardArrays{held->elements.span(), held->size / (1 + state.moments())},
                            world.rank()};
  restoring.move(hand_over(state.layout(), from.held, shards.cuts, world.rank()), 1, 1 + state.moments(), lists, kept);
  world.set_timeout(std::max(world.timeout(), time_for(state_bytes(state))));
  world.exchange_beside(
      std::move(lists.out.sends), std::move(lists.out.receives), Call::state, [this] { lacks_moments_ = false; },
      [&state, kept = std::move(kept)](std::vector<ReceiveList>&) { state.copy(kept); });
}

}  // namespace elrun::inline v0
