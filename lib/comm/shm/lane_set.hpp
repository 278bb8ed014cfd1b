#pragma once
/// \file LaneSet: the region of one rank, its peers on this host, and its slots. What transfers and reductions through memory have in common.
///
/// Slots are where bytes wait that peers are to read. The rank copies them there once, whatever the number of readers, and posts the slot as a
/// chunk in the lanes of the readers. A shared buffer needs no slot: the chunk names the buffer, and peers read it in place.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/comm/label.hpp"
#include "lib/comm/shm/buffer_registry.hpp"
#include "lib/comm/shm/doorbell.hpp"
#include "lib/comm/shm/lane_wait.hpp"
#include "lib/comm/shm/peer_lane.hpp"
#include "lib/comm/shm/region.hpp"
#include "lib/comm/shm/shared_memory.hpp"
#include "lib/comm/shm/slot_pool.hpp"

namespace elrun::inline v0 {

constexpr std::size_t step_most = 1 << 20;  ///< Read at once out of a shared buffer; then one looks whether all is over.

/// The words of which ListTransfer and Reduction are written: each is short, and puts together what a peer's lane, the slots, the shared buffers
/// and the wait decide by themselves. `end` from any thread, all else from the thread that makes the calls. More than 25 methods: a word for each
/// thing that a call does, in the order of a call: begin, post, receive, end.
class LaneSet {
 public:
  /// `local`: the ranks of this host, in rising order.
  static Result<std::unique_ptr<LaneSet>> make(const Membership& me, std::vector<Rank> local);
  LaneSet(const Membership& me, std::vector<Rank> local, SharedMemory region, Doorbell doorbell, std::size_t slot_size, std::size_t slots);
  ~LaneSet();

  [[nodiscard]] const Membership& me() const { return me_; }
  [[nodiscard]] const SharedMemory& region() const { return region_; }
  [[nodiscard]] const Doorbell& doorbell() const { return waiting_.doorbell(); }
  [[nodiscard]] SlotPool& slots() { return slots_; }
  /// Shared with the peers. A piece that has no place in them has to be copied into slots.
  [[nodiscard]] const OwnBuffers& buffers() const { return buffers_; }
  /// A peer of this host; null: it is none.
  [[nodiscard]] PeerLane* find(Rank rank);
  /// The peers that are attached. Each rank's list begins after itself, so that not all turn to the same peer first.
  [[nodiscard]] std::span<PeerLane* const> peers() const { return attached_; }
  Result<void> attach(Rank peer, Fd region, Bytes size, Fd doorbell, Fd post);
  void forget(Rank peer);
  Result<void> share(const std::shared_ptr<const void>& owner, const SharedMemory& memory);

  // --- a call ---

  CallLimit begin(Duration limit, const CallLabel& label);
  void begin(const CallLabel& label) { label_ = label; }
  [[nodiscard]] const CallLabel& label() const { return label_; }
  /// No: what was read of peers before this question was still theirs to give. For a group is over before its connections end, and its peers reuse
  /// what it reads only after that.
  [[nodiscard]] bool is_over() const {
    fence();
    return waiting_.is_over();
  }
  /// As LaneWait::in_time: once in each pass of a loop that may never wait.
  [[nodiscard]] Result<void> in_time(const CallLimit& limit) { return waiting_.in_time(limit); }
  /// Every call ends now.
  void end() noexcept { waiting_.end(); }
  /// The last thing of a call: if it failed, what peers could read in place is its caller's again, who may write there.
  [[nodiscard]] Result<void> or_withdraw(Result<void> result);
  /// Peers have read what they could read in place in this call.
  Result<void> until_taken(const CallLimit& limit);

  // --- posting ---

  /// A free slot, and room for it in the lanes of these peers.
  Result<RegionSlot*> wait_for_slot(std::span<PeerLane* const> to, const CallLimit& limit);
  /// Room for one more chunk in the lanes of these peers.
  Result<void> wait_for_room(std::span<PeerLane* const> to, const CallLimit& limit);
  void post(RegionSlot& slot, std::uint64_t length, std::uint64_t total, std::span<PeerLane* const> to) {
    slots_.post(slot, length, total, label_, to);
  }
  void post_shared(const BufferPlace& place, std::uint64_t length, std::uint64_t total, std::span<PeerLane* const> to);

  // --- receiving ---

  /// The next chunk of this peer, which has `length` bytes.
  Result<std::span<const std::byte>> expect(PeerLane& peer, std::uint64_t length, const CallLimit& limit);
  Result<void> wait_for_chunk(const PeerLane& peer, const CallLimit& limit);
  /// The peer's next chunk to the places of `peer.pending`, or as much of it as may be copied before looking around. `streaming`: past the caches.
  Result<void> copy_step(PeerLane& peer, bool streaming);

  /// As LaneWait::until, with the peers that are attached.
  template <class Ready, class Needed>
  Result<void> wait(const CallLimit& limit, Ready ready, Needed needed) {
    return waiting_.until(ready, needed, attached_, limit);
  }

 private:
  [[nodiscard]] std::size_t index_of(Rank rank) const;
  void list_attached();

  const Membership me_;
  const std::vector<Rank> local_;
  SharedMemory region_;
  RegionHeader* const header_;
  LaneWait waiting_;
  std::vector<PeerLane> peers_;
  std::vector<PeerLane*> attached_;
  SlotPool slots_;
  OwnBuffers buffers_;
  CallLabel label_;
};

/// The bytes to the next places of `to`.
void copy_out(std::span<const std::byte> from, Cursor<std::span<std::byte>>& to, bool streaming);

}  // namespace elrun::inline v0
