// Calls that are begun and go on beside the program.

#include <elrun/process_group.hpp>

#include <pthread.h>

#include <latch>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "lib/comm/call_queue.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process_groups.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("calls that are begun run in their order, beside the program, and with its own calls behind them", "[process_group]") {
  for_all_seeds(6, [](Rng& rng) {
    const std::uint32_t world = 1 + static_cast<std::uint32_t>(rng.below(4));
    const Transports transports = any_transports(rng, world);
    CHECK(run_group(
              world,
              [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
                const Deadline deadline = deadline_in(60s);
                // Each call works on what the one before it left.
                std::vector<std::uint64_t> data(100'000, rank + 1), part(data.size()), all(world * data.size());
                const auto bytes = [](std::vector<std::uint64_t>& values) { return std::as_writable_bytes(std::span{values}); };
                std::vector<Work> works;
                works.push_back(group.all_reduce_async(std::span{data}));          // data: the sum
                works.push_back(group.all_gather_async(bytes(data), bytes(all)));  // all: the sum everywhere
                works.push_back(
                    group.reduce_scatter_async(std::span<const std::uint64_t>{all}, std::span{part}));  // part: world times the sum
                works.push_back(group.broadcast_async(bytes(part), Rank{0}));
                works.push_back(group.barrier_async());
                complaints.must(group.all_reduce(std::span{part}, ReduceOp::max), "the call behind those that were begun");
                for (const Work& work : works) {
                  complaints(work.done(), "a call that was begun before is still under way");
                  complaints.must(work.wait(deadline), "work");
                }
                const std::uint64_t one = std::uint64_t{world} * (world + 1) / 2;
                complaints(std::ranges::all_of(data, [&](std::uint64_t x) { return x == one; }), "the sum is wrong");
                complaints(std::ranges::all_of(part, [&](std::uint64_t x) { return x == one * world; }), "the scattered sum is wrong");
              },
              transports) == "");
  });
}

TEST_CASE("a wait for a call that is not over says so, and may be made again", "[process_group]") {
  std::latch late{2};
  CHECK(run_group(2, [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
          if (rank == 1) {
            late.arrive_and_wait();
            return complaints.must(group.barrier(), "barrier");
          }
          const Work work = group.barrier_async();
          const auto waited = work.wait(deadline_in(1ms));
          complaints(
              !work.done() && !waited.ok() && waited.failure().code == Code::deadline_passed && waited.failure().remedy == Remedy::retry,
              "it was over");
          late.arrive_and_wait();
          complaints.must(work.wait(deadline_in(60s)), "the second wait");
          complaints.must(work.wait(deadline_in(0s)), "a wait for what is over");
        }) == "");
}

TEST_CASE("a call has the deadline and the label that stood when it was begun", "[process_group]") {
  std::latch begun{2}, waited{2};
  CHECK(run_group(2, [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
          group.set_label(5);
          if (rank == 1) {
            begun.arrive_and_wait();
            complaints.must(group.barrier(), "first");
            waited.arrive_and_wait();
            return complaints.must(group.barrier(), "second");
          }
          const Work first = group.barrier_async(), second = group.barrier_async();
          group.set_deadline(20ms);
          group.set_label(6);
          begun.arrive_and_wait();
          complaints.must(first.wait(deadline_in(60s)), "first");
          const auto early = second.wait(deadline_in(300ms));
          complaints(!early.ok() && early.failure().remedy == Remedy::retry,
                     "it was over: " + (early.ok() ? "" : message(early.failure())));
          waited.arrive_and_wait();
          complaints.must(second.wait(deadline_in(60s)), "second");
        }) == "");
}

TEST_CASE("a call whose thread cannot be started was not begun", "[process_group]") {
  CallQueue queue;
  int done = 0;
  const auto call = [&] { return ++done, Result<void>{}; };
  pthread_attr_t usual, huge;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_attr_init(&huge) == 0);
  REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0);  // no machine has room for it
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  bool thrown = false;
  try {
    (void)queue.begin(call);
  } catch (const std::system_error&) {
    thrown = true;
  }
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  CHECK(thrown);
  CHECK(queue.begin(call).wait(deadline_in(60s)).ok());
  CHECK(done == 1);
}

TEST_CASE("a call that throws on the queue's thread is a failure, of which the owner hears", "[process_group]") {
  std::string heard;
  CallQueue queue{[&](const Failure& why) { heard = why.what; }};
  const auto failed = queue.begin([]() -> Result<void> { throw std::bad_alloc{}; }).wait(deadline_in(60s));
  REQUIRE(!failed.ok());
  CHECK(failed.failure().code == Code::exhausted);
  CHECK(failed.failure().remedy == Remedy::exit_process);
  CHECK_THAT(failed.failure().what, Catch::Contains("bad_alloc"));
  CHECK(heard == failed.failure().what);
  CHECK(queue.begin([] { return Result<void>{}; }).wait(deadline_in(60s)).ok());
}

TEST_CASE("a call that throws is a failure also where its owner throws over it", "[process_group]") {
  CallQueue queue{[](const Failure&) { throw std::bad_alloc{}; }};
  const auto failed = queue.begin([]() -> Result<void> { throw std::bad_alloc{}; }).wait(deadline_in(60s));
  REQUIRE(!failed.ok());
  CHECK(failed.failure().code == Code::exhausted);
}

TEST_CASE("what is under way ends with its group, and by revocation", "[process_group]") {
  const bool revoked = GENERATE(false, true);
  std::latch ended{2};
  CHECK(run_group(2, [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
          if (rank == 1) return ended.arrive_and_wait();
          std::vector<std::byte> one(1'000'000), two(1'000'000);
          const Work first = group.receive_async(one, Rank{1}), second = group.receive_async(two, Rank{1});
          if (revoked) group.revoke({.code = Code::peer_lost, .what = "revoked by the test"});
          else {
            const ProcessGroup gone = std::move(group);
          }
          for (const Work& work : {first, second}) {
            const auto result = work.wait(deadline_in(60s));
            complaints(!result.ok() && result.failure().code == Code::generation_over,
                       result.ok() ? "it succeeded" : message(result.failure()));
          }
          ended.arrive_and_wait();
        }) == "");
}
