#include "lib/link/store_core.hpp"

#include <ctime>
#include <string>

#include <fmt/format.h>

#include "lib/link/store_memory.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

const Generation first{1, {{7, 7}}}, second{2, {{7, 7}}};
const StoreCaller ann{1}, bob{2}, cid{3};
constexpr Instant start{};

ByteVector bytes(std::string_view text) { return {as_bytes(text).begin(), as_bytes(text).end()}; }

// One call after the other, with ids of their own.
struct Caller {
  StoreCore& store;
  Generation generation = first;
  std::uint64_t next = 1;

  std::vector<StoreAnswer> operator()(StoreCaller from, StoreRequest request, Instant now = start) {
    request.id = next++;
    request.generation = generation;
    return store.call(from, request, now);
  }
};

StoreReply only(const std::vector<StoreAnswer>& answers) {
  REQUIRE(answers.size() == 1);
  return answers[0].reply;
}

StoreRequest set(std::string key, std::string_view value) { return {.op = StoreOp::set, .keys = {std::move(key)}, .value = bytes(value)}; }
StoreRequest get(std::string key, Duration wait = 10s) { return {.op = StoreOp::get, .wait = wait, .keys = {std::move(key)}}; }
StoreRequest add(std::string key, std::int64_t amount) { return {.op = StoreOp::add, .keys = {std::move(key)}, .amount = amount}; }
StoreRequest barrier(std::string name, std::uint32_t rank, std::uint32_t count, Duration wait = 10s) {
  return {.op = StoreOp::barrier, .wait = wait, .keys = {std::move(name)}, .rank = rank, .count = count};
}
StoreRequest gather(std::string name, std::uint32_t rank, std::uint32_t count, std::string_view value) {
  return {.op = StoreOp::all_gather, .wait = 10s, .keys = {std::move(name)}, .value = bytes(value), .rank = rank, .count = count};
}

StoreCore fresh_store() {
  StoreCore store;
  CHECK(store.begin_generation(first).empty());
  return store;
}

}  // namespace

TEST_CASE("a value that was set is what get gives", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  CHECK(only(call(ann, set("k", "one"))).ok);
  CHECK(only(call(bob, get("k"))).values == std::vector<ByteVector>{bytes("one")});
  CHECK(only(call(ann, set("k", "two"))).ok);
  CHECK(only(call(bob, get("k"))).values == std::vector<ByteVector>{bytes("two")});
  CHECK(only(call(ann, {.op = StoreOp::num_keys})).number == 1);
  CHECK(only(call(ann, {.op = StoreOp::remove, .keys = {"k"}})).number == 1);
  CHECK(only(call(ann, {.op = StoreOp::remove, .keys = {"k"}})).number == 0);
  CHECK(store.held() == 0_B);
}

TEST_CASE("get and wait are answered when the last missing key appears", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  CHECK(call(ann, get("b")).empty());
  CHECK(call(bob, {.op = StoreOp::wait, .wait = 10s, .keys = {"a", "b", "c"}}).empty());
  CHECK(call(cid, set("a", "")).size() == 1);
  const auto answers = call(cid, set("b", "x"));
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].to == ann);
  CHECK(answers[1].reply.id == 1);
  CHECK(answers[1].reply.values == std::vector<ByteVector>{bytes("x")});
  CHECK(call(cid, {.op = StoreOp::remove, .keys = {"a"}}).size() == 1);  // wait wants all keys at one time
  CHECK(call(cid, set("c", "")).size() == 1);
  CHECK(call(cid, set("a", "")).size() == 2);
  CHECK_FALSE(store.next_expiry());
}

TEST_CASE("a wait for many keys is not over while one of them was removed again", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  CHECK(call(ann, {.op = StoreOp::wait, .wait = 10s, .keys = {"a", "b", "c"}}).empty());
  for (const char* key : {"a", "b"}) CHECK(call(bob, set(key, "")).size() == 1);
  CHECK(call(bob, {.op = StoreOp::remove, .keys = {"a"}}).size() == 1);
  CHECK(call(bob, set("c", "")).size() == 1);
  CHECK(call(bob, set("a", "")).size() == 2);
}

TEST_CASE("keys of many ranks that all wait for all of them cost about the same in every order", "[store]") {
  constexpr std::uint32_t ranks = 400;
  const auto name = [](std::uint32_t rank) { return fmt::format("key/{:04}", rank); };
  StoreRequest all{.op = StoreOp::wait, .wait = 10s, .keys = {}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) all.keys.push_back(name(rank));
  const auto cost = [&](bool in_order) {
    StoreCore store = fresh_store();
    Caller call{store};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) CHECK(call(StoreCaller{rank + 10}, all).empty());
    const std::clock_t begun = std::clock();
    std::size_t answers = 0;
    for (std::uint32_t i = 0; i < ranks; ++i) answers += call(ann, set(name(in_order ? i : ranks - 1 - i), "")).size();
    CHECK(answers == 2 * ranks);
    return std::clock() - begun;
  };
  const std::clock_t first_one_last = cost(false);  // all wait for that one: no key before it costs a look
  CHECK(cost(true) < 20 * first_one_last);
}

TEST_CASE("every wait ends by its deadline and says what for", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  CHECK(call(ann, get("here/later", 5s)).empty());
  CHECK(call(bob, barrier("b", 1, 4, 7s)).empty());
  CHECK(store.next_expiry() == start + 5s);
  CHECK(store.expire(start + 5s - 1ns).empty());
  const StoreReply late = only(store.expire(start + 5s));
  CHECK(late.code == Code::deadline_passed);
  CHECK(late.what == "waited 5.0 s for key \"here/later\"");
  CHECK(only(store.expire(start + 1h)).what == "waited 7.0 s at barrier \"b\": 1 of 4 ranks are there; missing: ranks 0, 2, 3");
  CHECK_FALSE(store.next_expiry());
  CHECK(store.held() == 0_B);
  SECTION("a wait of nothing is answered at once") { CHECK(only(call(ann, get("k", 0s))).code == Code::deadline_passed); }
  SECTION("a wait of for ever is cut, not overflown") {
    CHECK(call(ann, get("k", Duration::max())).empty());
    CHECK(store.next_expiry() == start + store_wait_max);
  }
}

TEST_CASE("add counts from nothing, and refuses what is no number", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  CHECK(only(call(ann, add("n", 5))).number == 5);
  CHECK(only(call(bob, add("n", -7))).number == -2);
  CHECK(only(call(bob, get("n"))).values == std::vector<ByteVector>{bytes("-2")});
  CHECK(only(call(bob, set("n", "12 apples"))).ok);
  CHECK(only(call(bob, add("n", 1))).code == Code::invalid_argument);
  CHECK(only(call(bob, set("n", "9223372036854775807"))).ok);
  CHECK(only(call(bob, add("n", 1))).code == Code::invalid_argument);
}

TEST_CASE("compare_set stores only over what was expected", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  const auto swap = [&](std::string_view expected, std::string_view desired) {
    return only(call(ann, {.op = StoreOp::compare_set, .keys = {"k"}, .value = bytes(desired), .expected = bytes(expected)})).values.at(0);
  };
  CHECK(swap("old", "new") == bytes("old"));  // absent, and something was expected: nothing is stored
  CHECK(only(call(ann, {.op = StoreOp::num_keys})).number == 0);
  CHECK(swap("", "new") == bytes("new"));
  CHECK(swap("other", "newer") == bytes("new"));
  CHECK(swap("new", "newer") == bytes("newer"));
}

TEST_CASE("a barrier opens for all its callers at once, and can be used again", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  for (int round = 0; round < 3; ++round) {
    CHECK(call(ann, barrier("b", 0, 2)).empty());
    CHECK(call(bob, barrier("b", 1, 2)).size() == 2);
  }
  SECTION("a rank that is there already, or another count, is refused and changes nothing") {
    CHECK(call(ann, barrier("b", 0, 2)).empty());
    CHECK(only(call(cid, barrier("b", 0, 2))).code == Code::already_exists);
    CHECK(only(call(cid, barrier("b", 1, 3))).code == Code::mismatch);
    CHECK(call(bob, barrier("b", 1, 2)).size() == 2);
  }
  SECTION("who gave up or died no longer counts") {
    CHECK(call(ann, barrier("b", 0, 2, 1s)).empty());
    CHECK(store.expire(start + 1s).size() == 1);
    CHECK(call(bob, barrier("b", 1, 2)).empty());
    store.forget(bob);
    CHECK(call(ann, barrier("b", 0, 2)).empty());
    CHECK(call(bob, barrier("b", 1, 2)).size() == 2);
  }
}

TEST_CASE("all_gather gives everybody's values in rank order", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  CHECK(call(cid, gather("g", 2, 3, "c")).empty());
  CHECK(call(ann, gather("g", 0, 3, "a")).empty());
  CHECK(call(bob, barrier("g", 0, 2)).empty());  // a barrier of the same name is another thing
  const auto answers = call(bob, gather("g", 1, 3, ""));
  REQUIRE(answers.size() == 3);
  for (const StoreAnswer& answer : answers) CHECK(answer.reply.values == std::vector{bytes("a"), bytes(""), bytes("c")});
}

TEST_CASE("a generation that is revoked again keeps its first reason", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  CHECK(store.end_generation("rank 2 is gone").empty());
  CHECK(store.end_generation("rank 1 is gone").empty());  // it ended because of the first
  CHECK(only(call(ann, get("k"))).what == "generation 1@00000000 is over: rank 2 is gone");
  CHECK(store.begin_generation(second).empty());
  CHECK(store.end_generation("rank 0 is gone").empty());
  call.generation = second;
  CHECK(only(call(ann, get("k"))).what == "generation 2@00000000 is over: rank 0 is gone");
}

TEST_CASE("a generation fences its calls and takes its keys with it", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  CHECK(only(call(ann, set("k", "x"))).ok);
  CHECK(only(call(ann, set("job/k", "y"))).ok);
  CHECK(call(bob, get("later")).empty());
  SECTION("revoked: nobody is served any more") {
    CHECK(only(store.end_generation("node b is gone")).code == Code::generation_over);
    CHECK(only(call(ann, set("k", "z"))).what == "generation 1@00000000 is over: node b is gone");
    CHECK(store.begin_generation(second).empty());
  }
  SECTION("the next one begins") {
    const StoreReply over = only(store.begin_generation(second));
    CHECK(over.code == Code::generation_over);
    CHECK(over.what == "generation 1@00000000 is over; generation 2@00000000 began");
    const StoreReply stale = only(call(ann, set("k", "z")));
    CHECK(stale.code == Code::generation_over);
    CHECK(stale.what == "the caller's generation 1@00000000 is over; the store serves generation 2@00000000");
  }
  call.generation = second;
  CHECK(only(call(ann, {.op = StoreOp::num_keys})).number == 1);
  CHECK(only(call(ann, get("job/k"))).values == std::vector<ByteVector>{bytes("y")});
  call.generation = {2, {{8, 8}}};  // the same number from another coordinator
  CHECK(only(call(ann, get("job/k"))).code == Code::refused);
}

TEST_CASE("what is out of bounds is refused, and nothing is kept of it", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  const std::string long_key(store_key_max.value() + 1, 'k');
  const ByteVector big(store_value_max.value() + 1);
  CHECK(only(call(ann, set(long_key, ""))).code == Code::invalid_argument);
  CHECK(only(call(ann, {.op = StoreOp::set, .keys = {"k"}, .value = big})).code == Code::invalid_argument);
  CHECK(only(call(ann, {.op = StoreOp::set})).code == Code::invalid_argument);
  CHECK(only(call(ann, {.op = StoreOp::get, .wait = 1s, .keys = {"a", "b"}})).code == Code::invalid_argument);
  CHECK(only(call(ann, {.op = StoreOp::wait, .wait = 1s, .keys = std::vector<std::string>(store_keys_per_call_max + 1, "k")})).code ==
        Code::invalid_argument);
  CHECK(only(call(ann, {.op = static_cast<StoreOp>(77), .keys = {"k"}})).code == Code::invalid_argument);
  CHECK(only(call(ann, barrier("b", 2, 2))).code == Code::invalid_argument);
  CHECK(only(call(ann, barrier("b", 0, 0))).code == Code::invalid_argument);
  const ByteVector half(store_value_max.value() / 2 + 1);
  CHECK(only(call(ann, {.op = StoreOp::all_gather, .wait = 1s, .keys = {"g"}, .value = half, .rank = 0, .count = 2})).code ==
        Code::invalid_argument);
  CHECK(store.held() == 0_B);
  SECTION("a call id that is under way") {
    StoreRequest request = get("k");
    request.generation = first;
    CHECK(store.call(ann, request, start).empty());
    CHECK(only(store.call(ann, request, start)).code == Code::invalid_argument);
    CHECK(store.call(bob, request, start).empty());
  }
  SECTION("more than the store holds") {
    const ByteVector full(store_value_max.value() - 1000);
    for (int i = 0; i < 64; ++i) CHECK(only(call(ann, {.op = StoreOp::set, .keys = {std::to_string(i)}, .value = full})).ok);
    CHECK(only(call(ann, {.op = StoreOp::set, .keys = {"64"}, .value = full})).code == Code::exhausted);
    CHECK(only(call(ann, {.op = StoreOp::get, .keys = {"1"}})).ok);
  }
}

TEST_CASE("what holds no text counts as well: keys, names of keys that are waited for, and calls", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  const StoreRequest empty_names{.op = StoreOp::wait, .wait = 1h, .keys = std::vector<std::string>(store_keys_per_call_max)};
  for (int i = 0; i < 10; ++i) CHECK(call(ann, empty_names).empty());
  CHECK(store.held() == Bytes{10 * (store_call_overhead + store_keys_per_call_max * sizeof(std::string))});
  store.forget(ann);
  CHECK(store.held() == 0_B);
  CHECK(only(call(ann, set("", ""))).ok);
  CHECK(store.held() == Bytes{store_key_overhead});
}

TEST_CASE("watch is answered when the key differs from what the caller knows", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  const auto watch = [&](std::string_view known) {
    return StoreRequest{.op = StoreOp::watch, .wait = 10s, .keys = {"k"}, .expected = bytes(known)};
  };
  const StoreRequest watch_absent{.op = StoreOp::watch, .wait = 10s, .keys = {"k"}, .absent = true};
  SECTION("at once when it does already") {
    CHECK(only(call(ann, watch("x"))).values.empty());  // absent
    CHECK(call(ann, set("k", "")).size() == 1);
    CHECK(only(call(ann, watch_absent)).values == std::vector<ByteVector>{bytes("")});  // empty is not absent
    CHECK(only(call(ann, watch("x"))).values == std::vector<ByteVector>{bytes("")});
  }
  SECTION("when it appears, changes or vanishes, and not when the same is set again") {
    CHECK(call(ann, watch_absent).empty());
    CHECK(call(bob, set("other", "x")).size() == 1);
    CHECK(call(bob, set("k", "x")).at(1).reply.values == std::vector<ByteVector>{bytes("x")});
    CHECK(call(ann, watch("x")).empty());
    CHECK(call(cid, watch("x")).empty());
    CHECK(call(bob, set("k", "x")).size() == 1);
    CHECK(call(bob, add("n", 1)).size() == 1);
    CHECK(call(bob, {.op = StoreOp::compare_set, .keys = {"k"}, .value = bytes("y"), .expected = bytes("x")}).size() == 3);
    CHECK(call(ann, watch("y")).empty());
    const auto gone = call(bob, {.op = StoreOp::remove, .keys = {"k"}});
    REQUIRE(gone.size() == 2);
    CHECK(gone[1].reply.ok);
    CHECK(gone[1].reply.values.empty());
  }
  SECTION("the last state is never missed, whatever happened between two calls") {
    CHECK(call(bob, set("k", "a")).size() == 1);
    CHECK(call(bob, set("k", "b")).size() == 1);
    CHECK(only(call(ann, watch("a"))).values == std::vector<ByteVector>{bytes("b")});
  }
  SECTION("in vain") {
    CHECK(call(ann, watch_absent).empty());
    CHECK(only(store.expire(start + 10s)).what == "waited 10.0 s for key \"k\" to change");
    CHECK(store.held() == 0_B);
  }
}

TEST_CASE("num_keys counts what begins with a prefix", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  for (const char* key : {"a", "a/", "a/1", "a/2", "a0", "b"}) CHECK(only(call(ann, set(key, ""))).ok);
  CHECK(only(call(ann, {.op = StoreOp::num_keys})).number == 6);
  CHECK(only(call(ann, {.op = StoreOp::num_keys, .keys = {"a/"}})).number == 3);
  CHECK(only(call(ann, {.op = StoreOp::num_keys, .keys = {"c"}})).number == 0);
}

TEST_CASE("who lost the answer of a barrier or all_gather asks again and gets it", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  const auto as = [](StoreRequest request, std::uint64_t caller, std::uint64_t turn) {
    request.caller = caller, request.turn = turn;
    return request;
  };
  const StoreCaller ann_again{11};
  CHECK(call(ann, as(gather("g", 0, 2, "a"), 100, 1)).empty());
  CHECK(call(bob, as(gather("g", 1, 2, "b"), 200, 1)).size() == 2);
  const std::vector both{bytes("a"), bytes("b")};
  SECTION("by the same number, from another stream") {
    store.forget(ann);
    CHECK(only(call(ann_again, as(gather("g", 0, 2, "a"), 100, 1))).values == both);
    CHECK(only(call(ann_again, as(gather("g", 0, 2, "other"), 100, 1))).values == both);  // what the others got
  }
  SECTION("also while the others are at the next one") {
    CHECK(call(bob, as(gather("g", 1, 2, "B"), 200, 2)).empty());
    CHECK(only(call(ann_again, as(gather("g", 0, 2, "a"), 100, 1))).values == both);
    CHECK(call(ann_again, as(gather("g", 0, 2, "A"), 100, 2)).size() == 2);
  }
  SECTION("another number is a new call, and so is another process with that rank") {
    CHECK(call(ann, as(gather("g", 0, 2, "A"), 100, 2)).empty());
    store.forget(ann);
    CHECK(call(ann, as(gather("g", 0, 2, "A"), 300, 1)).empty());
  }
  SECTION("who asks again while it waits is heard once, at its new place") {
    CHECK(call(ann, as(barrier("b", 0, 2), 100, 7)).empty());
    const StoreAnswer before = call(ann_again, as(barrier("b", 0, 2), 100, 7)).at(0);
    CHECK(before.to == ann);
    CHECK(before.reply.code == Code::deadline_passed);
    CHECK(only(call(cid, as(barrier("b", 0, 2), 400, 1))).code == Code::already_exists);
    store.forget(ann);
    const auto open = call(bob, as(barrier("b", 1, 2), 200, 7));
    REQUIRE(open.size() == 2);
    CHECK(open[0].to == ann_again);
  }
  SECTION("until the generation ends") {
    CHECK(store.kept() > 0_B);
    CHECK(store.end_generation("over").empty());
    CHECK(store.kept() == 0_B);
    CHECK(store.begin_generation(second).empty());
    call.generation = second;
    CHECK(call(ann_again, as(gather("g", 0, 2, "a"), 100, 1)).empty());
  }
}

TEST_CASE("answers are kept within a bound, the oldest go first", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  const std::string large((16_MiB).value() - 1000, 'x');
  const auto alone = [&](int name) {
    StoreRequest request = gather(std::to_string(name), 0, 1, large);
    request.caller = 1, request.turn = static_cast<std::uint64_t>(name);
    return request;
  };
  for (int name = 1; name <= 6; ++name) CHECK(call(ann, alone(name)).size() == 1);
  CHECK(store.kept() <= store_kept_max);
  CHECK(store.held() == 0_B);
  const auto changed = [&](int name) {  // whether it is a new call, which takes the new value
    StoreRequest request = alone(name);
    request.value = bytes("new");
    return only(call(ann, request)).values.at(0) == bytes("new");
  };
  CHECK_FALSE(changed(6));
  CHECK_FALSE(changed(4));
  CHECK(changed(1));
}

TEST_CASE("clients outside have the job's keys, and no generation", "[store]") {
  StoreCore store;
  std::uint64_t id = 0;
  const auto outside = [&](StoreCaller from, StoreRequest request, std::uint64_t caller = 0) {
    request.id = ++id;
    request.caller = caller, request.turn = id;
    return store.call(from, request, start, StoreScope::job);
  };
  CHECK(only(outside(ann, set("k", "x"))).ok);  // no generation ever began
  CHECK(only(outside(ann, get("k"))).values == std::vector<ByteVector>{bytes("x")});
  CHECK(store.begin_generation(first).empty());
  Caller call{store};
  CHECK(only(call(bob, get("job/k"))).values == std::vector<ByteVector>{bytes("x")});
  CHECK(only(call(bob, set("k", "y"))).ok);
  CHECK(only(outside(ann, {.op = StoreOp::num_keys})).number == 1);
  SECTION("the end of a generation ends nothing of theirs") {
    CHECK(outside(ann, get("later")).empty());
    CHECK(outside(ann, barrier("b", 0, 2), 1).empty());
    CHECK(call(bob, get("later")).empty());
    CHECK(store.end_generation("over").size() == 1);
    CHECK(store.begin_generation(second).empty());
    CHECK(outside(ann, set("later", "")).size() == 2);
    CHECK(outside(ann, barrier("b", 0, 2), 2).size() == 2);
  }
  SECTION("a barrier counts them by who they are, and is none of the workers'") {
    CHECK(call(bob, barrier("job/b", 0, 2)).empty());
    CHECK(outside(ann, barrier("b", 0, 3, 5s), 1).empty());
    CHECK(outside(ann, barrier("b", 0, 3, 6s), 2).empty());
    CHECK(only(store.expire(start + 5s)).what == "waited 5.0 s at barrier \"job/b\": 2 of 3 callers are there");
    CHECK(outside(cid, barrier("b", 0, 3), 3).empty());
    CHECK(outside(ann, barrier("b", 0, 3), 1).size() == 3);
  }
  SECTION("one that never asks again is one of them, and who gave up beside it no longer counts") {
    CHECK(outside(ann, barrier("b", 0, 3), 0).empty());
    CHECK(outside(ann, barrier("b", 0, 3, 5s), 7).empty());
    CHECK(only(store.expire(start + 5s)).what == "waited 5.0 s at barrier \"job/b\": 2 of 3 callers are there");
    CHECK(outside(ann, barrier("b", 0, 3), 9).empty());
    CHECK(outside(ann, barrier("b", 0, 3), 8).size() == 3);
    CHECK(store.expire(start + 1h).empty());
  }
}

TEST_CASE("a fresh store goes on with a generation when its nodes have said what they remember", "[store]") {
  StoreCore store;
  CHECK(store.adopt_generation(first, 2).empty());
  Caller call{store};
  const auto replay = [&](StoreRequest request, std::uint64_t version, std::uint64_t caller = 0, std::uint64_t turn = 0) {
    request.replay = true, request.version = version, request.caller = caller, request.turn = turn;
    return call(cid, request);
  };
  const auto as = [](StoreRequest request, std::uint64_t caller, std::uint64_t turn) {
    request.caller = caller, request.turn = turn;
    return request;
  };
  CHECK(call(ann, add("n", 1)).empty());  // put off: what n was is not known yet
  CHECK(replay(set("n", "7"), 12).empty());
  CHECK(replay(set("n", "5"), 9).empty());  // another node did this before
  CHECK(replay({.op = StoreOp::remove, .keys = {"gone"}}, 15).empty());
  CHECK(replay(set("gone", "x"), 14).empty());
  CHECK(replay(gather("g", 0, 2, "a"), 20, 100, 1).empty());
  CHECK(call(ann, as(gather("g", 0, 2, "A"), 100, 2)).empty());  // rank 0 has that answer, and is at the next one
  CHECK(call(bob, as(gather("g", 1, 2, "b"), 200, 1)).empty());  // rank 1 lost it
  CHECK(replay({.op = StoreOp::relearned, .rank = 0}, 0).empty());
  CHECK(replay({.op = StoreOp::relearned, .rank = 0}, 0).empty());  // twice the same node
  SECTION("and not before") {
    const auto answers = replay({.op = StoreOp::relearned, .rank = 1}, 0);
    REQUIRE(answers.size() == 2);
    CHECK(answers[0].reply.number == 8);
    CHECK(answers[0].reply.version > 20);
    CHECK(answers[1].to == bob);
    CHECK(answers[1].reply.values == std::vector{bytes("a"), bytes("b")});
    CHECK(only(call(ann, {.op = StoreOp::num_keys})).number == 1);
    const auto next = call(bob, as(gather("g", 1, 2, "B"), 200, 2));
    REQUIRE(next.size() == 2);
    CHECK(next[0].reply.values == std::vector{bytes("A"), bytes("B")});
    CHECK(replay(set("n", "1"), 99).empty());  // too late
    CHECK(only(call(ann, get("n"))).values == std::vector<ByteVector>{bytes("8")});
  }
  SECTION("unless the generation ends") {
    CHECK(store.end_generation("a node was lost").size() == 3);
    CHECK(store.begin_generation(second).empty());
    CHECK(store.held() == 0_B);
  }
}

TEST_CASE("a node remembers what its workers did, and tells it to another store", "[store]") {
  StoreCore store = fresh_store();
  Caller call{store};
  StoreMemory memory;
  const auto done = [&](StoreCaller from, StoreRequest request) {
    const auto answers = call(from, request);
    REQUIRE(answers.size() == 1);
    memory.note(request, answers[0].reply);
  };
  done(ann, set("k", "old"));
  done(bob, set("k", "new"));
  done(ann, add("n", 4));
  done(ann, add("n", -1));
  done(ann, {.op = StoreOp::compare_set, .keys = {"c"}, .value = bytes("x")});
  done(ann, {.op = StoreOp::compare_set, .keys = {"c"}, .value = bytes("not stored"), .expected = bytes("y")});
  done(bob, set("gone", "x"));
  done(bob, {.op = StoreOp::remove, .keys = {"gone"}});
  done(bob, get("k"));
  done(ann, gather("g", 0, 1, "once"));
  done(ann, gather("g", 0, 1, "twice"));
  const auto replayed = memory.replay(first, 3);
  CHECK(replayed.size() == 6);  // k, n, c, gone, g, and that this is all
  CHECK(replayed.back().op == StoreOp::relearned);
  CHECK(replayed.back().rank == 3);
  StoreCore other;
  CHECK(other.adopt_generation(first, 1).empty());
  for (const StoreRequest& request : replayed) CHECK(other.call(cid, request, start).empty());
  Caller ask{other};
  CHECK(only(ask(ann, get("k"))).values == std::vector<ByteVector>{bytes("new")});
  CHECK(only(ask(ann, get("n"))).values == std::vector<ByteVector>{bytes("3")});
  CHECK(only(ask(ann, get("c"))).values == std::vector<ByteVector>{bytes("x")});
  CHECK(only(ask(ann, {.op = StoreOp::num_keys})).number == 3);
  SECTION("an older change whose answer comes late is not the newest") {
    memory.note(set("k", "older"), {.version = 1});
    for (const StoreRequest& request : memory.replay(first, 3)) CHECK(request.value != bytes("older"));
  }
  SECTION("within a bound, the oldest forgotten first") {
    const std::string large((16_MiB).value() - 1000, 'x');
    for (int i = 0; i < 5; ++i)
      memory.note(set(std::string(1, static_cast<char>('A' + i)), large), {.version = 100 + static_cast<std::uint64_t>(i)});
    const auto rest = memory.replay(first, 3);
    REQUIRE(rest.size() == 5);  // four that fit, and that this is all
    CHECK(rest[0].keys[0] == "B");
    CHECK(memory.has_forgotten());
    memory.clear();
    CHECK_FALSE(memory.has_forgotten());
  }
  SECTION("not beyond the generation") {
    CHECK_FALSE(memory.has_forgotten());
    memory.clear();
    CHECK(memory.replay(second, 0).size() == 1);
  }
}

}  // namespace elrun::test
