#pragma once
/// \file StoreRooms: where the callers of a barrier or all_gather meet. Pure.
///
/// A room has one seat per caller, and is emptied as a whole once all seats are taken: whoever gave up or died before has left its seat. An answer
/// may be lost with the stream that carried it. So a room keeps its last answer, and who asks again by the same number gets it. One is enough:
/// nobody comes to the next gathering of a room without the answer of the last one.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/planted.hpp"
#include "lib/link/store_call.hpp"
#include "lib/link/store_waiters.hpp"

namespace elrun::inline v0 {

struct RoomName {
  StoreScope scope;
  StoreOp op;
  std::string name;
  std::uint32_t count;
  friend auto operator<=>(const RoomName&, const RoomName&) = default;
};

/// StoreRequest::caller and rank.
using Asker = std::pair<std::uint64_t, std::uint32_t>;

struct RoomSeat {
  std::optional<WaiterId> waiter;  ///< Nothing: it has its answer, from a store that is gone.
  Asker asker;
  std::uint64_t turn = 0;
  ByteVector value{};  ///< Of who does not wait.
};
/// By rank alone ({0, rank}), but for a barrier of clients outside, who have none.
using RoomSeats = std::map<Asker, RoomSeat>;

/// All seats of a gathering were taken, and are free again.
struct FullRoom {
  RoomSeats seats;
  std::optional<std::uint64_t> version;  ///< Of a gathering that was finished in a store that is gone; nothing: it is finished now.
};

/// Keys outside: the rooms know who sits where, and nothing of who waits how long. A value. No room is kept that nobody uses.
class StoreRooms {
 public:
  /// Callers are in a room of that kind and name that has another count: that count.
  [[nodiscard]] std::optional<std::uint32_t> other_count(const RoomName& name) const;
  /// The kept answer of that turn of this asker; null: there is none.
  [[nodiscard]] std::shared_ptr<const StoreReply> kept_answer(const RoomName& name, const Asker& asker, std::uint64_t turn) const;

  struct Arrival {
    bool is_refused = false;             ///< Somebody else has the seat; nothing has changed.
    std::optional<WaiterId> replaced{};  ///< The same asker's call of the same turn, which waits no longer.
    std::optional<FullRoom> full{};      ///< This was the last seat.
  };
  /// A caller takes its place; `seat.waiter` is set.
  Arrival arrive(const RoomName& name, const Asker& place, RoomSeat seat);
  /// A caller was answered in a store that is gone, by this version. Older versions than the newest are passed over.
  std::optional<FullRoom> replay(const RoomName& name, std::uint32_t rank, RoomSeat seat, std::uint64_t version);
  /// This call waits no longer: its seat is free.
  void leave(const RoomName& name, const Asker& asker, const WaiterId& waiter);

  /// The answer of a gathering that was full, for those who ask again: `turns` by asker. The last one of the room alone. The oldest go when all weigh
  /// more than `store_kept_max`.
  void keep(const RoomName& name, std::map<Asker, std::uint64_t> turns, std::shared_ptr<const StoreReply> reply, std::uint64_t weight);
  /// All rooms of the generation, with their answers.
  void drop_generation();

  /// The seats of the gathering in which this rank sits, or else would.
  [[nodiscard]] const RoomSeats* seats_of(const RoomName& name, std::uint32_t rank) const;
  /// Of the values in seats.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Of the kept answers.
  [[nodiscard]] std::uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  struct Finished {
    std::map<Asker, std::uint64_t> turns;
    std::shared_ptr<const StoreReply> reply;
    std::uint64_t weight = 0, order = 0;
  };
  struct Room {
    RoomSeats past;  // a gathering that was finished in a store that is gone: some may not have its answer yet
    std::uint64_t past_version = 0;
    RoomSeats open;
    std::optional<Finished> finished;
  };
  using Rooms = std::map<RoomName, Room>;
  FullRoom empty(RoomSeats& seats, std::optional<std::uint64_t> version);
  void drop_kept(Room& room);
  void tidy(Rooms::iterator room);

  Rooms rooms_;
  std::map<std::uint64_t, RoomName> kept_;  // rooms with a finished gathering, oldest first
  std::uint64_t bytes_ = 0, kept_bytes_ = 0, kept_made_ = 0;
};

}  // namespace elrun::inline v0
