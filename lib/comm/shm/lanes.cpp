/// The idea: every rank has a region (see region.hpp) that it alone writes and its peers read. For each peer it has a lane (a ring of references
/// to chunks in the region, and two counters); and it has slots, where bytes wait that others are to read. A rank that has bytes for others
/// copies them into a slot once, whatever the number of readers, and posts the chunk in their lanes. A reader copies out, or folds
/// straight from the slot, and raises its own counter of chunks taken, which the writer reads. No word is written by two
/// processes, so there is no lock, and nothing that a dead or thawed process could leave torn.
///
/// The copy into the slot costs little. It reads the source once from memory for all readers (also for what this rank gives to itself, when
/// it is the same bytes), and the slots stay in the second cache. Memory is what large calls wait for; so they write their targets
/// past the caches.
///
/// A shared buffer (see buffer_registry.hpp) needs no slot: the chunk names the buffer, and peers copy or fold out of it through mappings of
/// their own. A rank waits at the end of its call until all peers have taken what they read in place. Where its call fails before that,
/// its program may write there again while a peer still reads. So it first withdraws, by a word in its region, and a reader looks
/// at that word after it has read, before it makes any use of what it read (as with a seqlock).
///
/// A rank that finds nothing to do says so in its region (`asleep`) and waits for its doorbell. A rank that has moved a counter rings the
/// doorbell of a peer that is asleep. Both first write, then read the other's word, in one total order: one of them sees the other.
/// The communication thread rings, too, when a peer's connection ends or the generation is over.

#include "lib/comm/shm/lanes.hpp"

#include <exception>

#include <fmt/format.h>

#include "lib/comm/shm/lane_set.hpp"
#include "lib/comm/shm/list_transfer.hpp"
#include "lib/comm/shm/reduction.hpp"
#include "lib/comm/shm/shared_buffer.hpp"

namespace elrun::inline v0 {

struct Lanes::State {
  State(std::unique_ptr<LaneSet> all, std::size_t local) : set{std::move(all)}, transfer{*set, local}, reduction{*set} {}
  const std::unique_ptr<LaneSet> set;
  ListTransfer transfer;
  Reduction reduction;
};

namespace {

/// What throws (no memory, say) has left a call half way: peers may still read what is its caller's.
template <class Body>
Result<void> without_exception(const Body& body) try {
  return body();
} catch (const std::exception& error) {
  return Failure{Code::exhausted, Remedy::exit_process, fmt::format("a call was left half way by an exception: {}", error.what())};
}

}  // namespace

Lanes::Lanes(std::unique_ptr<State> state) : state_{std::move(state)} {}
Lanes::~Lanes() = default;

Result<std::unique_ptr<Lanes>> Lanes::make(const Membership& me, std::vector<Rank> local) {
  const std::size_t size = local.size();
  ELRUN_TRY_ASSIGN(auto set, LaneSet::make(me, std::move(local)));
  return std::unique_ptr<Lanes>{new Lanes{std::make_unique<State>(std::move(set), size)}};
}

Lanes::Offer Lanes::offer(Rank peer) const {
  const PeerLane* const lane = state_->set->find(peer);
  const SharedMemory& region = state_->set->region();
  return {region.file(), state_->set->doorbell().file(), lane == nullptr ? -1 : lane->its_post(), Bytes{region.size()}};
}

Result<void> Lanes::attach(Rank peer, Fd region, Bytes size, Fd doorbell, Fd post) {
  return state_->set->attach(peer, std::move(region), size, std::move(doorbell), std::move(post));
}

bool Lanes::attached(Rank peer) const {
  const PeerLane* const lane = state_->set->find(peer);
  return lane != nullptr && lane->is_attached();
}

void Lanes::forget(Rank peer) { state_->set->forget(peer); }

Result<void> Lanes::share(const SharedBuffer& buffer) { return state_->set->share(buffer.state_, buffer.state_->memory()); }

void Lanes::lose(Rank peer) noexcept {
  if (PeerLane* const lane = state_->set->find(peer)) lane->lose();
  state_->set->doorbell().ring();
}

void Lanes::end() noexcept { state_->set->end(); }

Result<void> Lanes::transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                             const CallLimit& limit, const CallLabel& label) {
  LaneSet& set = *state_->set;
  set.begin(label);
  return set.or_withdraw(without_exception([&] { return state_->transfer.run(sends, receives, whom, limit); }));
}

Result<void> Lanes::transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                             Duration limit, const CallLabel& label) {
  return transfer(sends, receives, whom, state_->set->begin(limit, label), label);
}

Result<void> Lanes::reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                           const CallLabel& label) {
  LaneSet& set = *state_->set;
  return set.or_withdraw(without_exception([&] {
    return state_->reduction.run({in, out, count, type, op, gather}, set.begin(limit, label));
  }));
}

}  // namespace elrun::inline v0
