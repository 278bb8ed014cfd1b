#include "lib/comm/shm/lane_set.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <thread>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/memory_left.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/comm/copy.hpp"
#include "lib/comm/shm/unmap_delay.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Bytes slot_most = 64_KiB;  // so that a region stays in the second cache, and readers begin early
constexpr Bytes slot_least = 16_KiB;
constexpr Bytes large = 64_MiB;      // of shared buffers
constexpr Bytes slots_max = 32_MiB;  // of one region, as long as slots can become smaller

/// Descriptors, which are few, are closed at once, and memory is unmapped when this returns. Nobody joins this thread: where the process ends before
/// that, it ends with it. So it uses nothing but what it owns.
void keep_for_a_while(std::vector<PeerLane>& peers, Bytes shown) {
  for (PeerLane& peer : peers) peer.close();
  try {
    std::this_thread::sleep_for(delay_before_unmapping(shown, memory_to_spare()));
  } catch (const std::exception&) {  // not even the question could be asked: there is little memory
  }
}

}  // namespace

Result<std::unique_ptr<LaneSet>> LaneSet::make(const Membership& me, std::vector<Rank> local) {
  ELRUN_ASSERT(local.size() > 1 && std::ranges::is_sorted(local));
  // What two rounds of a reduction have under way (what others fold, and what was folded), twice, so that nobody sleeps early.
  const std::size_t slots = 4 * local.size();
  const std::size_t most = std::min<std::size_t>(slot_most.value(), slots_max.value() / slots) / page * page;
  const std::size_t slot_size = std::max<std::size_t>(slot_least.value(), most);
  ELRUN_TRY_ASSIGN(SharedMemory region, SharedMemory::make(Bytes{slots_offset(local.size()) + slots * slot_size}));
  ELRUN_TRY_ASSIGN(Doorbell doorbell, Doorbell::make());
  auto set = std::make_unique<LaneSet>(me, std::move(local), std::move(region), std::move(doorbell), slot_size, slots);
  for (PeerLane& peer : set->peers_) ELRUN_TRY(peer.open_post());
  return set;
}

LaneSet::LaneSet(const Membership& me, std::vector<Rank> local, SharedMemory region, Doorbell doorbell, std::size_t slot_size,
                 std::size_t slots)
    : me_{me},
      local_{std::move(local)},
      region_{std::move(region)},
      header_{new (region_.data()) RegionHeader{}},
      waiting_{*header_, std::move(doorbell), local_.size()},
      peers_(local_.size() - 1),
      slots_{region_.data(), slots_offset(local_.size()), slot_size, slots, peers_.size()} {
  header_->size = region_.size();
  header_->generation = me_.generation.number;
  header_->lineage = me_.generation.lineage.bits;
  header_->rank = me_.rank.value();
  header_->world = me_.world.value();
  header_->local = static_cast<std::uint32_t>(local_.size());
  for (std::size_t i = 0; i < local_.size(); ++i) new (lane_at(region_.data(), i)) Lane{};
  header_->magic = region_magic;
  const std::size_t mine = index_of(me_.rank);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const std::size_t index = (mine + 1 + i) % local_.size();
    peers_[i].place(local_[index], lane_at(region_.data(), index));
  }
  attached_.reserve(peers_.size());
}

/// The last process that unmaps a dead peer's memory frees its pages, which takes 0.1 to 0.2 s for each GB. A survivor is that process, and its next generation
/// would wait for it. So a thread frees them, a little later. How much peers have shown is not known before their buffers are mapped; it is about as much as
/// this rank has shown.
LaneSet::~LaneSet() {
  if (buffers_.shown() < large) return;
  std::uint64_t shown = buffers_.shown().value();
  for (const PeerLane& peer : peers_) shown += peer.mapped().value();
  try {
    quiet_thread([peers = std::move(peers_), shown]() mutable { keep_for_a_while(peers, Bytes{shown}); }).detach();
  } catch (const std::exception&) {  // no thread can be had, or no memory for one: they were let go of here
  }
}

std::size_t LaneSet::index_of(Rank rank) const {
  const auto at = std::ranges::find(local_, rank);
  ELRUN_ASSERT(at != local_.end());
  return static_cast<std::size_t>(at - local_.begin());
}

PeerLane* LaneSet::find(Rank rank) {
  const auto at = std::ranges::find_if(peers_, [&](const PeerLane& peer) { return peer.rank() == rank; });
  return at == peers_.end() ? nullptr : &*at;
}

Result<void> LaneSet::attach(Rank whom, Fd region, Bytes size, Fd doorbell, Fd post) {
  PeerLane* const peer = find(whom);
  if (peer == nullptr) return Failure{Code::protocol, Remedy::abort_group, "shared memory that was not expected"};
  ELRUN_TRY(peer->attach(me_, index_of(me_.rank), local_.size(), std::move(region), size, std::move(doorbell), std::move(post)));
  list_attached();
  return {};
}

void LaneSet::forget(Rank whom) {
  if (PeerLane* const peer = find(whom)) peer->detach();
  list_attached();
}

/// In the order of peers_, whatever the order of attaching.
void LaneSet::list_attached() {
  attached_.clear();
  for (PeerLane& each : peers_)
    if (each.is_attached()) attached_.push_back(&each);
}

Result<void> LaneSet::share(const std::shared_ptr<const void>& owner, const SharedMemory& memory) {
  // Descriptors that nobody has taken count against one limit for all processes of a user. Ranks share at the same time: each makes room first,
  // while this process's own last descriptor is free.
  for (PeerLane* const peer : attached_) peer->take_shown();
  return buffers_.share(owner, memory, [&](std::span<const std::byte> words, int file) -> Result<void> {
    for (const PeerLane* const peer : attached_) ELRUN_TRY(peer->show(words, file));
    return {};
  });
}

CallLimit LaneSet::begin(Duration limit, const CallLabel& label) {
  begin(label);
  return waiting_.begin(limit);
}

Result<void> LaneSet::or_withdraw(Result<void> result) {
  if (!result.ok()) {
    header_->withdrawn.store(1);
    fence();
  }
  return result;
}

Result<void> LaneSet::until_taken(const CallLimit& limit) {
  const auto reads = [](const PeerLane& peer) { return peer.reads_shared(); };
  const auto ready = [&] { return std::ranges::none_of(attached_, [&](const PeerLane* peer) { return reads(*peer); }); };
  if (!ready()) ELRUN_TRY(wait(limit, ready, reads));
  if (is_over()) return generation_is_over();
  return {};
}

namespace {

bool have_room(std::span<PeerLane* const> to) {
  return std::ranges::all_of(to, [](const PeerLane* peer) { return peer->in_flight() < chunks_max; });
}
constexpr auto is_slow = [](const PeerLane& peer) { return peer.in_flight() > 0; };

}  // namespace

Result<RegionSlot*> LaneSet::wait_for_slot(std::span<PeerLane* const> to, const CallLimit& limit) {
  RegionSlot* slot = nullptr;
  const auto ready = [&] { return have_room(to) && (slot = slots_.free()) != nullptr; };
  if (!ready()) ELRUN_TRY(wait(limit, ready, is_slow));
  return slot;
}

Result<void> LaneSet::wait_for_room(std::span<PeerLane* const> to, const CallLimit& limit) {
  const auto ready = [&] { return have_room(to); };
  if (!ready()) ELRUN_TRY(wait(limit, ready, is_slow));
  return {};
}

void LaneSet::post_shared(const BufferPlace& place, std::uint64_t length, std::uint64_t total, std::span<PeerLane* const> to) {
  for (PeerLane* const peer : to) peer->post({.offset = place.offset, .length = length, .buffer = place.buffer}, total, label_);
}

Result<void> LaneSet::wait_for_chunk(const PeerLane& peer, const CallLimit& limit) {
  if (peer.is_available()) return {};
  return wait(
      limit, [&] { return peer.is_available(); }, [&](const PeerLane& other) { return &other == &peer; });
}

Result<std::span<const std::byte>> LaneSet::expect(PeerLane& peer, std::uint64_t length, const CallLimit& limit) {
  ELRUN_TRY(wait_for_chunk(peer, limit));
  ELRUN_TRY_ASSIGN(const std::span<const std::byte> piece, peer.head(label_));
  if (piece.size() != length) {
    return Failure{
        .code = Code::protocol,
        .remedy = Remedy::abort_group,
        .what = fmt::format("rank {} posted a block of {} bytes in a reduction where one of {} belongs: the ranks make different calls",
                            peer.rank().value(), piece.size(), length),
        .peer = peer.rank()};
  }
  return piece;
}

Result<void> LaneSet::copy_step(PeerLane& peer, bool streaming) {
  ELRUN_TRY_ASSIGN(const std::span<const std::byte> chunk, peer.head(label_));
  const std::span<const std::byte> rest = chunk.subspan(std::min<std::size_t>(peer.used, chunk.size()));
  if (rest.size() > peer.pending.left()) return peer.differing(peer.total() + rest.size());
  const std::span<const std::byte> step = rest.first(std::min(rest.size(), step_most));
  copy_out(step, peer.pending, streaming);
  ELRUN_TRY(peer.still_valid());
  peer.used += step.size();
  if (peer.used < chunk.size()) return {};
  peer.used = 0;
  peer.took();
  return {};
}

void copy_out(std::span<const std::byte> from, Cursor<std::span<std::byte>>& to, bool streaming) {
  while (!from.empty()) {
    std::span<std::byte> into;
    (void)to.take(from.size(), std::span{&into, 1});
    copy_bytes(into.data(), from.data(), into.size(), streaming);
    from = from.subspan(into.size());
  }
}

}  // namespace elrun::inline v0
