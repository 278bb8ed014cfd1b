#include "lib/comm/shm/list_transfer.hpp"

#include <algorithm>
#include <cstring>

#include "lib/comm/copy.hpp"

namespace elrun::inline v0 {

ListTransfer::ListTransfer(LaneSet& lanes, std::size_t local) : lanes_{lanes}, streams_(local - 1) {
  for (Stream& stream : streams_) stream.to.reserve(local - 1);
}

Result<void> ListTransfer::run(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                               const CallLimit& limit) {
  const std::size_t me = lanes_.me().rank.value();
  streams_used_ = 0;
  own_ = Cursor<ReceivePiece>{};
  std::uint64_t wanted = Cursor<ReceivePiece>{receives[me]}.left();
  for (PeerLane* const peer : lanes_.peers()) {
    peer->pending = Cursor<ReceivePiece>{};
    if (whom && peer->rank() != *whom) continue;
    peer->pending = Cursor<ReceivePiece>{receives[peer->rank().value()]};
    peer->begin_call(peer->pending.left());
    wanted += peer->total();
    add(*peer, sends[peer->rank().value()]);
  }
  streaming_ = wanted >= streamed_least;
  // First what others can read in place: they do so while this rank copies its own.
  for (Stream& stream : streams())
    while (next_shared(stream) && has_room(stream)) give_shared(stream);
  take_own(sends[me], receives[me]);
  for (;;) {
    bool moved = false, open = false;
    for (PeerLane* const peer : lanes_.peers()) {
      if (peer->pending.done()) continue;
      if (peer->is_available()) {
        ELRUN_TRY(lanes_.copy_step(*peer, streaming_));
        moved = true;
      }
      open = open || !peer->pending.done();
    }
    for (Stream& stream : streams()) {
      if (stream.left.done()) continue;
      moved = give(stream) || moved;
      open = open || !stream.left.done();
    }
    if (lanes_.is_over()) return generation_is_over();  // also at the end: peers that heard of it may have reused what was just read
    if (!open) return lanes_.until_taken(limit);
    if (moved) ELRUN_TRY(lanes_.in_time(limit));
    else ELRUN_TRY(wait(limit));
  }
}

/// Until a chunk came from which is still to be copied, or something can be given.
Result<void> ListTransfer::wait(const CallLimit& limit) {
  return lanes_.wait(
      limit,
      [&] {
        return std::ranges::any_of(lanes_.peers(), [](const PeerLane* peer) { return !peer->pending.done() && peer->is_available(); }) ||
               std::ranges::any_of(streams(), [&](const Stream& stream) { return !stream.left.done() && can_give(stream); });
      },
      [&](const PeerLane& peer) {
        return !peer.pending.done() || holds_slots(peer) || std::ranges::any_of(streams(), [&](const Stream& stream) {
          return !stream.left.done() && std::ranges::find(stream.to, &peer) != stream.to.end() &&
                 peer.in_flight() >= most_in_flight(stream);
        });
      });
}

/// Something waits for a slot, and this peer has not taken what earlier calls put there.
bool ListTransfer::holds_slots(const PeerLane& peer) {
  return lanes_.slots().waits_for(peer) &&
         std::ranges::any_of(streams(), [&](const Stream& stream) { return !stream.left.done() && !next_shared(stream); });
}

bool ListTransfer::same(std::span<const SendPiece> a, std::span<const SendPiece> b) {
  return std::ranges::equal(a, b, [](SendPiece x, SendPiece y) { return x.data() == y.data() && x.size() == y.size(); });
}

void ListTransfer::add(PeerLane& peer, const SendList& list) {
  const Cursor<SendPiece> left{list};
  if (left.done()) return;
  for (Stream& stream : streams()) {
    if (same(stream.list, list)) return stream.to.push_back(&peer);
  }
  Stream& stream = streams_[streams_used_++];
  stream.list = list;
  stream.left = left;
  stream.total = left.left();
  stream.to.assign(1, &peer);
}

std::optional<BufferPlace> ListTransfer::next_shared(const Stream& stream) const {
  if (lanes_.buffers().empty()) return std::nullopt;
  SendPiece piece;
  Cursor<SendPiece> left = stream.left;
  (void)left.take(call_payload_max, std::span{&piece, 1});
  return lanes_.buffers().place_of(piece);
}

/// A peer that is slow may hold its share of the slots, and not those that others wait for.
std::uint64_t ListTransfer::most_in_flight(const Stream& stream) const {
  if (next_shared(stream)) return chunks_max;
  return std::min<std::uint64_t>(chunks_max, std::max<std::size_t>(2, lanes_.slots().size() * stream.to.size() / streams_.size()));
}

bool ListTransfer::has_room(const Stream& stream) const {
  const std::uint64_t most = most_in_flight(stream);
  return std::ranges::all_of(stream.to, [&](const PeerLane* peer) { return peer->in_flight() < most; });
}

bool ListTransfer::can_give(const Stream& stream) { return has_room(stream) && (next_shared(stream) || lanes_.slots().free() != nullptr); }

bool ListTransfer::give(Stream& stream) {
  if (!can_give(stream)) return false;
  if (next_shared(stream)) give_shared(stream);
  else give_slot(stream, *lanes_.slots().free());
  return true;
}

void ListTransfer::give_shared(Stream& stream) {
  const BufferPlace place = next_shared(stream).value();
  SendPiece piece;
  (void)stream.left.take(call_payload_max, std::span{&piece, 1});
  lanes_.post_shared(place, piece.size(), stream.total, stream.to);
}

void ListTransfer::give_slot(Stream& stream, RegionSlot& slot) {
  std::size_t filled = 0;
  while (filled < lanes_.slots().slot_size() && !stream.left.done() && !next_shared(stream)) {
    SendPiece piece;
    (void)stream.left.take(lanes_.slots().slot_size() - filled, std::span{&piece, 1});
    std::memcpy(slot.begin + filled, piece.data(), piece.size());
    filled += piece.size();
  }
  lanes_.post(slot, filled, stream.total, stream.to);
  if (&stream == own_stream_) copy_out({slot.begin, filled}, own_, streaming_);
}

/// What this rank gives itself. Where a stream has the same bytes, it is copied out of the slots: there the bytes are in the cache.
void ListTransfer::take_own(const SendList& from, const ReceiveList& to) {
  own_stream_ = nullptr;
  if (from.size() != 1 || to.size() != 1) return copy_lists(from, to);
  const SendPiece source = from.front(), target = to.front();
  if (source.data() == target.data()) return;
  const bool apart = source.data() + source.size() <= target.data() || target.data() + target.size() <= source.data();
  const auto stream = std::ranges::find_if(
      streams(), [&](const Stream& each) { return same(each.list, from) && each.left.left() == each.total && !next_shared(each); });
  if (!apart || stream == streams().end()) return copy_lists(from, to);
  own_stream_ = &*stream;
  own_ = Cursor<ReceivePiece>{to};
}

}  // namespace elrun::inline v0
