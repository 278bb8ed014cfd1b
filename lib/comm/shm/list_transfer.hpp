#pragma once
/// \file ListTransfer: a call's lists between this rank and the peers of its host, through memory.

#include <optional>
#include <span>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/comm/cursor.hpp"
#include "lib/comm/shm/lane_set.hpp"

namespace elrun::inline v0 {

/// Kept between calls, so that a call allocates nothing.
class ListTransfer {
 public:
  explicit ListTransfer(LaneSet& lanes, std::size_t local);
  /// As Lanes::transfer, without its end.
  Result<void> run(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                   const CallLimit& limit);

 private:
  using SendPiece = std::span<const std::byte>;
  using ReceivePiece = std::span<std::byte>;
  /// Bytes that go to one peer, or the same bytes to several: they are copied into slots once.
  struct Stream {
    std::span<const SendPiece> list;
    Cursor<SendPiece> left;
    std::uint64_t total = 0;
    std::vector<PeerLane*> to;
  };
  static bool same(std::span<const SendPiece> a, std::span<const SendPiece> b);
  [[nodiscard]] std::span<Stream> streams() { return std::span{streams_}.first(streams_used_); }
  void add(PeerLane& peer, const SendList& list);
  [[nodiscard]] std::optional<BufferPlace> next_shared(const Stream& stream) const;
  [[nodiscard]] std::uint64_t most_in_flight(const Stream& stream) const;
  [[nodiscard]] bool has_room(const Stream& stream) const;
  [[nodiscard]] bool can_give(const Stream& stream);
  bool give(Stream& stream);
  void give_shared(Stream& stream);
  void give_slot(Stream& stream, RegionSlot& slot);
  void take_own(const SendList& from, const ReceiveList& to);
  Result<void> wait(const CallLimit& limit);
  [[nodiscard]] bool holds_slots(const PeerLane& peer);

  LaneSet& lanes_;
  std::vector<Stream> streams_;
  std::size_t streams_used_ = 0;
  Cursor<ReceivePiece> own_;            // what this rank gives itself, out of the slots of
  const Stream* own_stream_ = nullptr;  // this
  bool streaming_ = false;              // past the caches
};

}  // namespace elrun::inline v0
