// The parts of StoreCore, each by itself: keys, those who wait, the rooms where they meet, and the adoption of a generation.

#include <memory>
#include <string>
#include <vector>

#include "lib/link/store_adoption.hpp"
#include "lib/link/store_keys.hpp"
#include "lib/link/store_rooms.hpp"
#include "lib/link/store_waiters.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

const StoreCaller ann{1}, bob{2};
constexpr Instant start{};
using Ids = std::vector<WaiterId>;

ByteVector bytes(std::string_view text) { return {as_bytes(text).begin(), as_bytes(text).end()}; }
StoreRequest waits_for(std::string key, Duration wait) { return {.op = StoreOp::get, .wait = wait, .keys = {std::move(key)}}; }

}  // namespace

TEST_CASE("keys count their names and values, and only the job's outlive a generation", "[store]") {
  StoreKeys keys;
  CHECK(keys.find("a") == nullptr);
  keys.put("a/1", bytes("12345"));
  keys.put("a/2", {});
  keys.put("job/a", bytes("1"));
  CHECK(keys.bytes() == 3 + 5 + 3 + 5 + 1 + 3 * store_key_overhead);
  CHECK(keys.size() == 3);
  CHECK(keys.count("a/") == 2);
  CHECK(keys.count("") == 3);
  CHECK(keys.count("b") == 0);
  keys.put("a/1", bytes("1"));
  CHECK(*keys.find("a/1") == bytes("1"));
  CHECK(keys.bytes() == 3 + 1 + 3 + 5 + 1 + 3 * store_key_overhead);
  CHECK(keys.missing({.keys = {"a/1", "c", "b"}}) == 1);
  CHECK(keys.missing({.keys = {"c", "a/1", "b"}}, 1) == 2);
  CHECK(keys.missing({.keys = {"a/1", "a/2"}}) == 2);
  keys.erase("a/1");
  CHECK_FALSE(keys.contains("a/1"));
  CHECK(keys.bytes() == 3 + 5 + 1 + 2 * store_key_overhead);
  keys.drop_generation();
  CHECK(keys.size() == 1);
  CHECK(keys.contains("job/a"));
  CHECK(keys.bytes() == 5 + 1 + store_key_overhead);
}

TEST_CASE("a waiter is found by caller, scope, deadline and key, until it is released", "[store]") {
  StoreWaiters waiters;
  CHECK_FALSE(waiters.next_expiry());
  waiters.add({bob, 1}, waits_for("k", 20s), start, StoreScope::generation);
  waiters.add({ann, 7}, {.op = StoreOp::wait, .wait = 10s, .keys = {"k", "other"}}, start, StoreScope::job);
  waiters.add({ann, 3}, waits_for("long", Duration::max()), start, StoreScope::generation);
  for (const WaiterId& id : Ids{{bob, 1}, {ann, 7}}) waiters.park(id, 0);
  CHECK(waiters.size() == 3);
  CHECK(waiters.bytes() == 1 + 6 + 4 + 3 * store_call_overhead + 4 * sizeof(std::string));
  CHECK(waiters.of(ann) == Ids{{ann, 3}, {ann, 7}});
  CHECK(waiters.of(StoreScope::generation) == Ids{{ann, 3}, {bob, 1}});
  CHECK(waiters.parked_at("k") == Ids{{ann, 7}, {bob, 1}});
  CHECK(waiters.next_expiry() == start + 10s);
  CHECK(waiters.late(start + 9s).empty());
  CHECK(waiters.late(start + 20s) == Ids{{ann, 7}, {bob, 1}});  // the first one first
  CHECK(waiters.at({ann, 3}).until == start + store_wait_max);  // a longer wait is cut
  SECTION("it is parked at one key") {
    waiters.park({ann, 7}, 1);
    CHECK(waiters.parked_at("k") == Ids{{bob, 1}});
    CHECK(waiters.parked_at("other") == Ids{{ann, 7}});
  }
  SECTION("released") {
    CHECK(waiters.release({ann, 7}).request.keys[0] == "k");
    CHECK_FALSE(waiters.contains({ann, 7}));
    CHECK(waiters.parked_at("k") == Ids{{bob, 1}});
    CHECK(waiters.next_expiry() == start + 20s);
    CHECK(waiters.bytes() == 1 + 4 + 2 * (store_call_overhead + sizeof(std::string)));
    CHECK_FALSE(waiters.release({ann, 3}).parked_at);
    waiters.release({bob, 1});
    CHECK(waiters.parked_at("k").empty());
    CHECK(waiters.bytes() == 0);
  }
}

namespace {

const RoomName room{StoreScope::generation, StoreOp::all_gather, "r", 2},
    room_of_three{StoreScope::generation, StoreOp::all_gather, "t", 3};

RoomSeat seat_of(StoreCaller caller, std::uint64_t asker, std::uint32_t rank, std::uint64_t turn = 1) {
  return {.waiter = WaiterId{caller, turn}, .asker = {asker, rank}, .turn = turn};
}
RoomSeat past_seat(std::uint64_t asker, std::uint32_t rank, std::string_view value, std::uint64_t turn = 1) {
  return {.waiter = {}, .asker = {asker, rank}, .turn = turn, .value = bytes(value)};
}
std::shared_ptr<const StoreReply> reply_of(std::uint64_t version) {
  StoreReply reply;
  reply.version = version;
  return std::make_shared<const StoreReply>(std::move(reply));
}

}  // namespace

TEST_CASE("a room is full when each caller has a seat, and then it can be used again", "[store]") {
  StoreRooms rooms;
  const auto first = rooms.arrive(room, {0, 0}, seat_of(ann, 11, 0));
  CHECK_FALSE(first.is_refused);
  CHECK_FALSE(first.full);
  SECTION("all came") {
    const auto last = rooms.arrive(room, {0, 1}, seat_of(bob, 12, 1));
    REQUIRE(last.full);
    CHECK(last.full->seats.size() == 2);
    CHECK_FALSE(last.full->version);  // it is finished now
    CHECK(rooms.seats_of(room, 0)->empty());
    CHECK_FALSE(rooms.arrive(room, {0, 0}, seat_of(ann, 11, 0, 2)).full);
  }
  SECTION("a seat that is taken stays with who has it") {
    CHECK(rooms.arrive(room, {0, 0}, seat_of(bob, 12, 0)).is_refused);     // another process with that rank
    CHECK(rooms.arrive(room, {0, 0}, seat_of(bob, 11, 0, 2)).is_refused);  // another call of it
    CHECK(rooms.arrive(room, {0, 0}, seat_of(bob, 0, 0)).is_refused);      // a caller that never asks again
    CHECK(rooms.seats_of(room, 0)->at({0, 0}).waiter == WaiterId{ann, 1});
  }
  SECTION("a caller that never asks again does not do so by chance") {
    CHECK_FALSE(rooms.arrive(room_of_three, {0, 2}, seat_of(ann, 0, 2)).is_refused);
    CHECK(rooms.arrive(room_of_three, {0, 2}, seat_of(bob, 0, 2)).is_refused);
  }
  SECTION("who asks again by the same number has one seat, as its newest call") {
    const auto again = rooms.arrive(room, {0, 0}, seat_of(bob, 11, 0));
    CHECK(again.replaced == WaiterId{ann, 1});
    CHECK_FALSE(again.full);
    CHECK(rooms.seats_of(room, 0)->at({0, 0}).waiter == WaiterId{bob, 1});
    rooms.leave(room, {11, 0}, {ann, 1});  // the call that was replaced has no seat
    CHECK(rooms.seats_of(room, 0)->size() == 1);
  }
  SECTION("who leaves counts no more, and an empty room is gone") {
    rooms.leave(room, {11, 0}, {ann, 1});
    CHECK(rooms.seats_of(room, 0) == nullptr);
    CHECK_FALSE(rooms.arrive(room, {0, 1}, seat_of(bob, 12, 1)).full);
  }
  SECTION("another count is told while somebody is there") {
    RoomName other = room;
    other.count = 3;
    CHECK(rooms.other_count(other) == 2u);
    CHECK_FALSE(rooms.other_count(room));
    other.scope = StoreScope::job;
    CHECK_FALSE(rooms.other_count(other));
    other.scope = StoreScope::generation;
    rooms.leave(room, {11, 0}, {ann, 1});
    CHECK_FALSE(rooms.other_count(other));
  }
}

TEST_CASE("a room keeps its last answer for those who had it, within a bound for all rooms", "[store]") {
  StoreRooms rooms;
  const auto gather = [&](const RoomName& name) {
    (void)rooms.arrive(name, {0, 0}, seat_of(ann, 11, 0));
    REQUIRE(rooms.arrive(name, {0, 1}, seat_of(bob, 12, 1)).full);
  };
  gather(room);
  rooms.keep(room, {{{11, 0}, 5}}, reply_of(9), 100);
  CHECK(rooms.kept_bytes() == 100);
  CHECK(rooms.kept_answer(room, {11, 0}, 5)->version == 9);
  CHECK(rooms.kept_answer(room, {11, 0}, 6) == nullptr);
  CHECK(rooms.kept_answer(room, {12, 0}, 5) == nullptr);
  RoomName larger = room;
  larger.count = 3;
  CHECK_FALSE(rooms.other_count(larger));  // nobody is there any more
  SECTION("the last one alone") {
    gather(room);
    rooms.keep(room, {{{11, 0}, 6}}, reply_of(10), 50);
    CHECK(rooms.kept_bytes() == 50);
    CHECK(rooms.kept_answer(room, {11, 0}, 5) == nullptr);
  }
  SECTION("nothing where nobody asks again") {
    gather(room);
    rooms.keep(room, {}, reply_of(10), 50);
    CHECK(rooms.kept_bytes() == 0);
    CHECK(rooms.seats_of(room, 0) == nullptr);
  }
  SECTION("the oldest goes first") {
    RoomName other = room;
    other.name = "s";
    gather(other);
    rooms.keep(other, {{{11, 0}, 1}}, reply_of(10), store_kept_max.value());
    CHECK(rooms.kept_answer(room, {11, 0}, 5) == nullptr);
    CHECK(rooms.seats_of(room, 0) == nullptr);
    CHECK(rooms.kept_answer(other, {11, 0}, 1)->version == 10);
  }
  SECTION("until its generation ends, but for the job's") {
    RoomName job = room;
    job.scope = StoreScope::job;
    gather(job);
    rooms.keep(job, {{{11, 0}, 1}}, reply_of(10), 7);
    rooms.drop_generation();
    CHECK(rooms.kept_bytes() == 7);
    CHECK(rooms.kept_answer(room, {11, 0}, 5) == nullptr);
    CHECK(rooms.kept_answer(job, {11, 0}, 1) != nullptr);
  }
}

TEST_CASE("members that have or ask for the answer finish a gathering of a store that is gone", "[store]") {
  StoreRooms rooms;
  CHECK_FALSE(rooms.replay(room, 0, past_seat(11, 0, "abc"), 5));
  CHECK(rooms.bytes() == 3);
  SECTION("all had it") {
    const auto full = rooms.replay(room, 1, past_seat(12, 1, "de"), 5);
    REQUIRE(full);
    CHECK(full->version == 5u);
    CHECK(full->seats.at({0, 0}).value == bytes("abc"));
    CHECK(rooms.bytes() == 0);
  }
  SECTION("one asks for it") {
    const auto asked = rooms.arrive(room, {0, 1}, seat_of(bob, 12, 1));
    REQUIRE(asked.full);
    CHECK(asked.full->version == 5u);
    CHECK(rooms.bytes() == 0);
  }
  SECTION("who had it is at the next one") {
    CHECK_FALSE(rooms.arrive(room, {0, 0}, seat_of(ann, 11, 0, 2)).full);
    CHECK(rooms.seats_of(room, 0)->at({0, 0}).waiter == WaiterId{ann, 2});
    CHECK(rooms.seats_of(room, 0)->size() == 1);
    CHECK(rooms.arrive(room, {0, 1}, seat_of(bob, 12, 1)).full->version == 5u);
  }
  SECTION("who asks for it twice waits once") {
    (void)rooms.replay(room_of_three, 0, past_seat(11, 0, "abc"), 5);
    CHECK_FALSE(rooms.arrive(room_of_three, {0, 1}, seat_of(bob, 12, 1)).full);
    CHECK(rooms.arrive(room_of_three, {0, 1}, seat_of(ann, 12, 1)).replaced == WaiterId{bob, 1});
    CHECK(rooms.seats_of(room_of_three, 1)->size() == 2);
  }
  SECTION("a later one: all were through this") {
    CHECK_FALSE(rooms.replay(room, 1, past_seat(12, 1, "f", 2), 6));
    CHECK(rooms.bytes() == 1);
    CHECK_FALSE(rooms.replay(room, 0, past_seat(11, 0, "abc"), 5));
    CHECK(rooms.bytes() == 1);
  }
  SECTION("the same twice counts once") {
    CHECK_FALSE(rooms.replay(room, 0, past_seat(11, 0, "abc"), 5));
    CHECK(rooms.bytes() == 3);
  }
  SECTION("not beyond the generation") {
    rooms.drop_generation();
    CHECK(rooms.bytes() == 0);
    CHECK_FALSE(rooms.arrive(room, {0, 1}, seat_of(bob, 12, 1)).full);
  }
}

TEST_CASE("an adoption lasts until all nodes have said what they remember, and puts off what comes meanwhile", "[store]") {
  StoreAdoption adoption;
  CHECK_FALSE(adoption.is_under_way());
  adoption.begin(2);
  CHECK(adoption.is_under_way());
  CHECK_FALSE(adoption.note_reported(0));
  CHECK_FALSE(adoption.note_reported(0));  // a node counts once
  CHECK(adoption.is_newest("k", 4));
  CHECK_FALSE(adoption.is_newest("k", 4));
  CHECK_FALSE(adoption.is_newest("k", 3));
  CHECK(adoption.is_newest("other", 3));
  const auto put_off = [&](StoreCaller from, std::string key, StoreScope scope) {
    adoption.put_off({from, waits_for(std::move(key), 1s), start, scope});
  };
  put_off(ann, "a", StoreScope::generation);
  put_off(bob, "bb", StoreScope::job);
  put_off(ann, "ccc", StoreScope::job);
  CHECK(adoption.calls() == 3);
  const std::uint64_t names = 1 + 5 + 2 * store_key_overhead, call = store_call_overhead + sizeof(std::string);
  CHECK(adoption.bytes() == names + 6 + 3 * call);
  SECTION("in their order") {
    CHECK(adoption.note_reported(1));
    const auto calls = adoption.end();
    REQUIRE(calls.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(calls[i].request.keys[0].size() == i + 1);
    CHECK_FALSE(adoption.is_under_way());
    CHECK(adoption.bytes() == 0);
    CHECK(adoption.calls() == 0);
    adoption.begin(1);
    CHECK(adoption.is_newest("k", 1));  // nothing is known of the one before
    CHECK(adoption.note_reported(1));
  }
  SECTION("not of a caller that is gone") {
    adoption.forget(ann);
    CHECK(adoption.bytes() == names + 2 + call);
    CHECK(adoption.end().front().from == bob);
  }
  SECTION("not of a generation that is over") {
    const auto over = adoption.drop_generation();
    REQUIRE(over.size() == 1);
    CHECK(over[0].request.keys[0] == "a");
    CHECK(adoption.bytes() == names + 5 + 2 * call);
    CHECK(adoption.end().size() == 2);
  }
}

}  // namespace elrun::test
