#include "lib/link/store_rooms.hpp"

#include <utility>

namespace elrun::inline v0 {

std::optional<std::uint32_t> StoreRooms::other_count(const RoomName& name) const {
  for (auto other = rooms_.lower_bound({name.scope, name.op, name.name, 0});
       other != rooms_.end() && other->first.name == name.name && other->first.op == name.op && other->first.scope == name.scope; ++other)
    if (other->first.count != name.count && !other->second.open.empty()) return other->first.count;
  return {};
}

std::shared_ptr<const StoreReply> StoreRooms::kept_answer(const RoomName& name, const Asker& asker, std::uint64_t turn) const {
  const auto room = rooms_.find(name);
  if (room == rooms_.end() || !room->second.finished) return {};
  const auto kept = room->second.finished->turns.find(asker);
  if (kept == room->second.finished->turns.end() || kept->second != turn) return {};
  return room->second.finished->reply;
}

StoreRooms::Arrival StoreRooms::arrive(const RoomName& name, const Asker& place, RoomSeat seat) {
  Room& room = rooms_.try_emplace(name).first->second;
  const bool past = !room.past.empty() && (!room.past.contains(place) || room.past.at(place).waiter);
  RoomSeats& seats = past ? room.past : room.open;
  if (const auto taken = seats.find(place); taken != seats.end()) {
    RoomSeat& former = taken->second;
    if (seat.asker.first == 0 || former.asker != seat.asker || former.turn != seat.turn) return {.is_refused = true};
    return {.replaced = std::exchange(former.waiter, seat.waiter)};  // it asks again, and no longer hears what it asked before
  }
  seats.emplace(place, std::move(seat));
  if (seats.size() != name.count - (ELRUN_PLANTED(barrier_opens_early) && name.count > 1 ? 1 : 0)) return {};
  return {.full = empty(seats, past ? std::optional{room.past_version} : std::nullopt)};
}

std::optional<FullRoom> StoreRooms::replay(const RoomName& name, std::uint32_t rank, RoomSeat seat, std::uint64_t version) {
  Room& room = rooms_.try_emplace(name).first->second;
  if (version < room.past_version) return {};  // others were through a later one, so all were through this
  if (version > room.past_version) {
    (void)empty(room.past, {});
    room.past_version = version;
  }
  const std::uint64_t size = seat.value.size();
  if (!room.past.try_emplace(Asker{0, rank}, std::move(seat)).second) return {};
  bytes_ += size;
  if (room.past.size() != name.count) return {};
  return empty(room.past, room.past_version);
}

void StoreRooms::leave(const RoomName& name, const Asker& asker, const WaiterId& waiter) {
  const auto room = rooms_.find(name);
  if (room == rooms_.end()) return;
  for (RoomSeats* seats : {&room->second.past, &room->second.open}) {
    // By rank, or, at a barrier of clients outside, by who it is. There one that says 0 may sit at the other of the two places.
    for (const Asker& place : {Asker{0, asker.second}, asker}) {
      const auto seat = seats->find(place);
      if (seat != seats->end() && seat->second.waiter == waiter) seats->erase(seat);
    }
  }
  tidy(room);
}

void StoreRooms::keep(const RoomName& name, std::map<Asker, std::uint64_t> turns, std::shared_ptr<const StoreReply> reply,
                      std::uint64_t weight) {
  const auto room = rooms_.find(name);
  drop_kept(room->second);
  if (turns.empty()) return tidy(room);
  kept_bytes_ += weight;
  kept_.emplace(++kept_made_, name);
  room->second.finished = Finished{std::move(turns), std::move(reply), weight, kept_made_};
  while (kept_bytes_ > store_kept_max.value()) {
    const auto oldest = rooms_.find(kept_.begin()->second);
    drop_kept(oldest->second);
    tidy(oldest);
  }
}

void StoreRooms::drop_generation() {
  for (auto room = rooms_.begin(); room != rooms_.end();) {
    const auto here = room++;
    if (here->first.scope != StoreScope::generation) continue;
    (void)empty(here->second.past, {});
    drop_kept(here->second);
    rooms_.erase(here);
  }
}

const RoomSeats* StoreRooms::seats_of(const RoomName& name, std::uint32_t rank) const {
  const auto room = rooms_.find(name);
  if (room == rooms_.end()) return nullptr;
  const auto past = room->second.past.find({0, rank});
  return past != room->second.past.end() && past->second.waiter ? &room->second.past : &room->second.open;
}

FullRoom StoreRooms::empty(RoomSeats& seats, std::optional<std::uint64_t> version) {
  for (const auto& [place, seat] : seats) bytes_ -= seat.value.size();
  return {std::exchange(seats, {}), version};
}

void StoreRooms::drop_kept(Room& room) {
  if (!room.finished) return;
  kept_bytes_ -= room.finished->weight;
  kept_.erase(room.finished->order);
  room.finished.reset();
}

void StoreRooms::tidy(Rooms::iterator room) {
  if (room->second.past.empty() && room->second.open.empty() && !room->second.finished) rooms_.erase(room);
}

}  // namespace elrun::inline v0
