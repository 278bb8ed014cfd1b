#include "launcher/supervise/store_calls.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

constexpr Instant start{};

StoreRequest call(std::uint64_t id, StoreOp op) {
  StoreRequest request;
  request.id = id;
  request.op = op;
  request.wait = 10s;
  return request;
}

StoreResult answer(ConnectionId worker, std::uint64_t id) {
  StoreResult result;
  result.worker = worker;
  result.reply.id = id;
  return result;
}

}  // namespace

TEST_CASE("a call is under way until its answer comes, and is answered once", "[store calls]") {
  StoreCalls calls;
  CHECK_FALSE(calls.add(7, call(1, StoreOp::get), start));
  CHECK(calls.add(7, call(1, StoreOp::get), start)->code == Code::protocol);
  CHECK_FALSE(calls.add(8, call(1, StoreOp::get), start));  // another caller numbers its own
  CHECK(calls.answered(answer(7, 1)) == StoreOp::get);
  CHECK_FALSE(calls.answered(answer(7, 1)));
  CHECK(calls.answered(answer(8, 1)) == StoreOp::get);
}

TEST_CASE("a worker has a bounded number of calls under way", "[store calls]") {
  StoreCalls calls;
  for (std::uint64_t id = 0; id < store_calls_per_worker_max; ++id) REQUIRE_FALSE(calls.add(7, call(id, StoreOp::get), start));
  CHECK(calls.add(7, call(store_calls_per_worker_max, StoreOp::get), start)->code == Code::exhausted);
  CHECK_FALSE(calls.add(8, call(0, StoreOp::get), start));
}

TEST_CASE("a call that must not be done twice fails when the coordinator is lost; others are sent again", "[store calls]") {
  StoreCalls calls;
  for (const auto& [id, op] : {std::pair{1, StoreOp::get}, std::pair{2, StoreOp::add}, std::pair{3, StoreOp::compare_set},
                               std::pair{4, StoreOp::remove}, std::pair{5, StoreOp::set}})
    REQUIRE_FALSE(calls.add(7, call(static_cast<std::uint64_t>(id), op), start));
  const auto failed = calls.coordinator_lost();
  REQUIRE(failed.size() == 3);
  for (const auto& [caller, reply] : failed) {
    CHECK(caller == 7);
    CHECK(reply.code == Code::unreachable);
    CHECK_FALSE(reply.ok);
  }
  const auto again = calls.to_send_again(false, {}, start);
  REQUIRE(again.size() == 2);
  CHECK(again[0].request.op == StoreOp::get);
  CHECK(again[1].request.op == StoreOp::set);
}

TEST_CASE("a call that is sent again waits for what is left of its time, and one whose time is over is not sent", "[store calls]") {
  StoreCalls calls;
  StoreRequest meets = call(1, StoreOp::barrier);
  meets.keys = {"b"};
  REQUIRE_FALSE(calls.add(7, meets, start));
  REQUIRE_FALSE(calls.add(7, call(2, StoreOp::set), start));
  REQUIRE_FALSE(calls.add(8, call(3, StoreOp::get), start + 4s));
  CHECK(calls.end_late(start + 9s).empty());
  const auto again = calls.to_send_again(false, {}, start + 9s);
  REQUIRE(again.size() == 3);
  CHECK(again[0].request.wait == 1s);
  CHECK(again[2].request.wait == 5s);
  const auto late = calls.end_late(start + 10s);  // that of a set is no wait
  REQUIRE(late.size() == 1);
  CHECK(late[0].first == 7);
  CHECK(late[0].second.id == 1);
  CHECK(late[0].second.code == Code::deadline_passed);
  CHECK(calls.to_send_again(false, {}, start + 10s).size() == 2);
}

TEST_CASE("a call that does not wait at all is asked again: that the coordinator was away says nothing of its key", "[store calls]") {
  StoreCalls calls;
  StoreRequest looks = call(1, StoreOp::get);
  looks.wait = Duration{0};
  REQUIRE_FALSE(calls.add(7, looks, start));
  CHECK(calls.end_late(start + 1s).empty());
  const auto again = calls.to_send_again(false, {}, start + 1s);
  REQUIRE(again.size() == 1);
  CHECK(again[0].request.wait == Duration{0});
}

TEST_CASE("a caller that is gone leaves no call behind", "[store calls]") {
  StoreCalls calls;
  REQUIRE_FALSE(calls.add(7, call(1, StoreOp::all_gather), start));
  REQUIRE_FALSE(calls.add(8, call(1, StoreOp::get), start));
  CHECK(calls.is_gathering(7));
  CHECK_FALSE(calls.is_gathering(8));
  calls.forget(7);
  CHECK_FALSE(calls.is_gathering(7));
  CHECK(calls.to_send_again(false, {}, start).size() == 1);
  calls.end_generation();
  CHECK(calls.to_send_again(false, {}, start).empty());
}

TEST_CASE("a store that is empty hears what was done in this generation, and nothing of the one before", "[store calls]") {
  StoreCalls calls;
  StoreRequest set = call(1, StoreOp::set);
  set.keys = {"key"};
  REQUIRE_FALSE(calls.add(7, set, start));
  StoreResult done = answer(7, 1);
  done.reply.ok = true;
  done.reply.version = 1;
  CHECK(calls.answered(done) == StoreOp::set);
  const std::size_t remembered = calls.to_send_again(true, {}, start).size();
  CHECK(calls.to_send_again(false, {}, start).empty());
  calls.begin_generation();
  CHECK(calls.to_send_again(true, {}, start).size() < remembered);
}
