#include "launcher/supervise/hang_watch.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

Instant instant(Duration d) { return Instant{} + d; }
bool nobody_waits(const Worker&) { return false; }

Workers two_workers() {
  Workers workers{2};
  for (std::uint32_t i = 0; i < 2; ++i) {
    workers[i].start_in({{1, {}}, Rank{i}, WorldSize{2}}, i);
    workers[i].pid = 101 + i;
  }
  return workers;
}

std::vector<LocalRank> locals(std::initializer_list<std::uint32_t> numbers) {
  std::vector<LocalRank> found;
  for (const std::uint32_t number : numbers) found.emplace_back(number);
  return found;
}

}  // namespace

TEST_CASE("a worker with a session hangs when no sign came for the limit, and is found once", "[hang]") {
  HangWatches hangs{10s, HangSign::progress};
  Workers workers = two_workers();
  hangs.begin_generation(workers, instant(0s));
  for (std::uint32_t i = 0; i < 2; ++i) hangs.opens_in_world(LocalRank{i}, instant(0s)), workers[i].session.joined = true;
  hangs.sign_in_world(LocalRank{0}, instant(5s));
  CHECK(hangs.due_in_world(true) == instant(10s));
  CHECK_FALSE(hangs.find_in_world(workers, nobody_waits, true, instant(9s)));
  const auto found = hangs.find_in_world(workers, nobody_waits, true, instant(10s));
  REQUIRE(found);
  CHECK(found->silent == locals({1}));
  CHECK(found->suspects == locals({0, 1}));  // any of them may be the one that hangs
  CHECK_FALSE(found->is_forming);
  CHECK_FALSE(hangs.due_in_world(true));
}

TEST_CASE("before all have joined, only the silent are suspects, and who waits for the others is not silent", "[hang]") {
  HangWatches hangs{10s, HangSign::progress};
  Workers workers = two_workers();
  hangs.begin_generation(workers, instant(0s));
  hangs.opens_in_world(LocalRank{0}, instant(0s));
  const auto first_waits = [&](const Worker& w) { return &w == workers.data(); };
  SECTION("a worker that opens no session hangs, when the program is a Job") {
    const auto found = hangs.find_in_world(workers, first_waits, true, instant(10s));
    REQUIRE(found);
    CHECK(found->silent == locals({1}));
    CHECK(found->suspects == locals({1}));
    CHECK(found->is_forming);
    CHECK(hangs.due_in_world(true) == instant(20s));  // its time begins anew
  }
  SECTION("another program never opens one") {
    CHECK_FALSE(hangs.find_in_world(workers, first_waits, false, instant(10s)));
    CHECK(hangs.due_in_world(false) == instant(20s));
  }
}

TEST_CASE("with output as the sign, workers are watched from their start, and a missing session is no hang", "[hang]") {
  HangWatches hangs{10s, HangSign::output};
  const Workers workers = two_workers();
  hangs.begin_generation(workers, instant(0s));
  hangs.sign_in_world(LocalRank{0}, instant(1s)), hangs.sign_in_world(LocalRank{1}, instant(2s));
  CHECK(hangs.due_in_world(true) == instant(11s));
  CHECK_FALSE(hangs.find_in_world(workers, nobody_waits, true, instant(10s)));  // though no session was opened
  hangs.end_generation();
  CHECK_FALSE(hangs.due_in_world(true));
}

TEST_CASE("a pending worker is watched until it is ready", "[hang]") {
  HangWatches hangs{10s, HangSign::progress};
  Workers workers = two_workers();
  hangs.starts_beside(LocalRank{1}, instant(0s));
  hangs.end_generation();  // of the others
  CHECK(hangs.due_pending() == instant(10s));
  SECTION("found once") {
    CHECK(hangs.find_pending(workers, instant(10s)) == locals({1}));
    CHECK(hangs.find_pending(workers, instant(30s)).empty());
  }
  SECTION("ready") {
    hangs.forget_pending(LocalRank{1});
    CHECK(hangs.find_pending(workers, instant(30s)).empty());
  }
  SECTION("from the moment in which it has a process: before, it waits for the one before it to be gone") {
    workers[1].pid = 0;
    CHECK(hangs.find_pending(workers, instant(10s)).empty());
    CHECK(hangs.due_pending() == instant(20s));
    workers[1].pid = 102;
    hangs.has_process(LocalRank{1}, instant(15s));
    CHECK(hangs.find_pending(workers, instant(24s)).empty());
    CHECK(hangs.find_pending(workers, instant(25s)) == locals({1}));
  }
}

TEST_CASE("a worker of the world without a process does not hang", "[hang]") {
  HangWatches hangs{10s, HangSign::progress};
  Workers workers = two_workers();
  workers[1].pid = 0;
  hangs.begin_generation(workers, instant(0s));
  const auto found = hangs.find_in_world(workers, nobody_waits, true, instant(10s));
  REQUIRE(found);
  CHECK(found->silent == locals({0}));
  workers[1].pid = 102;
  hangs.has_process(LocalRank{1}, instant(15s));
  CHECK_FALSE(hangs.find_in_world(workers, nobody_waits, true, instant(24s)));
  CHECK(hangs.find_in_world(workers, nobody_waits, true, instant(25s)));
}

TEST_CASE("those that hang get SIGABRT, then SIGKILL, and the next generation begins with SIGABRT", "[hang]") {
  HangWatches hangs{10s, HangSign::progress};
  CHECK(hangs.next_signal() == SIGABRT);
  CHECK(hangs.next_signal() == SIGKILL);
  hangs.begin_generation({}, instant(0s));
  CHECK(hangs.next_signal() == SIGABRT);
}

TEST_CASE("without a limit nobody is watched", "[hang]") {
  HangWatches hangs{0s, HangSign::output};
  hangs.begin_generation(two_workers(), instant(0s));
  hangs.starts_beside(LocalRank{0}, instant(0s));
  CHECK_FALSE(hangs.due_in_world(true));
  CHECK_FALSE(hangs.due_pending());
}
