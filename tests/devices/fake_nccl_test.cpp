// What the fake NCCL itself promises to the tests that stand on it, by its C interface: each of its faults is seen.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "lib/comm/nccl/library.hpp"
#include "tests/devices/nccl_world.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

const NcclLibrary& nccl() {
  static const NcclLibrary library = NcclLibrary::load().value();
  return library;
}

ncclResult_t ask(ncclComm_t comm) {
  ncclResult_t answer = ncclSuccess;
  return nccl().comm_get_async_error(comm, &answer) == ncclSuccess ? answer : ncclInternalError;
}
ncclResult_t settle(ncclComm_t comm) {
  for (;; std::this_thread::yield())
    if (const ncclResult_t answer = ask(comm); answer != ncclInProgress) return answer;
}

struct RawRank {
  int rank;
  ncclComm_t comm = nullptr;
  OwnedStream stream;
  [[nodiscard]] cudaStream_t native() const { return static_cast<cudaStream_t>(stream.view().handle()); }
};

/// Communicators of a world, each on a thread and a device of its own; `body` on each.
void run_raw(
    int world, const std::function<void(RawRank&)>& body, const std::function<int(int)>& device = [](int rank) { return rank; }) {
  ncclUniqueId id{};
  REQUIRE(nccl().get_unique_id(&id) == ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      (void)cudaSetDevice(device(rank));
      RawRank mine{rank, nullptr, OwnedStream{cuda(static_cast<std::uint32_t>(device(rank)))}};
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclUniqueId ids[] = {id};
      if (nccl().comm_init(&mine.comm, world, rank, 1, ids, &config) != ncclInProgress) std::abort();
      body(mine);
    });
  for (std::thread& thread : threads) thread.join();
}

template <class Function>
Function function(const char* name) {
  return in_fake_nccl<Function>(name);
}

}  // namespace

TEST_CASE("every call is in progress first, and the stream has it only when that is over", "[fake_nccl]") {
  std::atomic<int> problems{0};
  run_raw(2, [&](RawRank& mine) {
    if (settle(mine.comm) != ncclSuccess) ++problems;
    const OnDevice<float> data{mine.stream.view(), {1, 2}};
    if (nccl().all_reduce(data.span().data, data.span().data, 2, ncclFloat32, ncclSum, mine.comm, mine.native()) != ncclInProgress)
      ++problems;
    if (cudaStreamQuery(mine.native()) != cudaSuccess) ++problems;  // nothing is there yet
    // Before it is settled, another call is refused.
    if (nccl().all_reduce(data.span().data, data.span().data, 2, ncclFloat32, ncclSum, mine.comm, mine.native()) != ncclInvalidArgument)
      ++problems;
    if (settle(mine.comm) != ncclSuccess || cudaStreamSynchronize(mine.native()) != cudaSuccess) ++problems;
    if (data.values() != std::vector<float>{2, 4}) ++problems;
    (void)nccl().comm_finalize(mine.comm);
    if (settle(mine.comm) != ncclSuccess || nccl().comm_destroy(mine.comm) != ncclSuccess) ++problems;
  });
  CHECK(problems == 0);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("the order of a sum depends on where an element is, so that nobody relies on rank order", "[fake_nccl]") {
  // 1 + 2^24 + -2^24 + 1 in float: another order, another sum.
  const float values[] = {1.0f, 16777216.0f, -16777216.0f, 1.0f};
  std::vector<float> sums;
  run_raw(4, [&](RawRank& mine) {
    (void)settle(mine.comm);
    const OnDevice<float> data{mine.stream.view(), std::vector<float>(4, values[mine.rank])};
    (void)nccl().all_reduce(data.span().data, data.span().data, 4, ncclFloat32, ncclSum, mine.comm, mine.native());
    (void)settle(mine.comm);
    const auto got = data.values();
    if (mine.rank == 0) sums = got;
    (void)nccl().comm_finalize(mine.comm);
    (void)settle(mine.comm);
    (void)nccl().comm_destroy(mine.comm);
  });
  REQUIRE(sums.size() == 4);
  CHECK(std::ranges::any_of(sums, [&](float sum) { return sum != sums.front(); }));
}

TEST_CASE("sends that fit in no buffer block receives that are not in their group, and an abort lets the streams run on over garbage",
          "[fake_nccl]") {
  std::atomic<int> problems{0}, blocked{0};
  run_raw(2, [&](RawRank& mine) {
    (void)settle(mine.comm);
    const OnDevice<std::uint32_t> out{mine.stream.view(), std::vector<std::uint32_t>(8192, 1)},
        in{mine.stream.view(), std::vector<std::uint32_t>(8192, 2)};
    const OwnedStream second{cuda(static_cast<std::uint32_t>(mine.rank))};
    const auto send = [&](std::size_t count) {
      (void)nccl().send(out.span().data, count, ncclUint32, 1 - mine.rank, mine.comm, mine.native());
    };
    const auto receive = [&](std::size_t count, cudaStream_t stream) {
      (void)nccl().receive(in.span().data, count, ncclUint32, 1 - mine.rank, mine.comm, stream);
    };
    (void)nccl().group_start();  // connects the two; without it the send would be in progress for good
    send(1), receive(1, mine.native());
    (void)nccl().group_end();
    if (settle(mine.comm) != ncclSuccess || in.values().front() != 1) ++problems;
    send(2);  // fits in a buffer
    (void)settle(mine.comm);
    receive(2, mine.native());
    (void)settle(mine.comm);
    if (in.values()[1] != 1) ++problems;
    send(8192);
    (void)settle(mine.comm);
    receive(8192, static_cast<cudaStream_t>(second.view().handle()));  // behind the send, on whatever stream
    (void)settle(mine.comm);
    for (int i = 0; i < 5; ++i) {
      std::this_thread::sleep_for(1ms);
      if (cudaStreamQuery(mine.native()) == cudaSuccess) ++problems;
    }
    ++blocked;
    if (nccl().comm_abort(mine.comm) != ncclSuccess || cudaStreamSynchronize(mine.native()) != cudaSuccess) ++problems;
    (void)in.values();  // garbage
  });
  CHECK((problems == 0 && blocked == 2));
  CHECK(!fakegpu::take_reports().empty());  // of those who read it
}

TEST_CASE("two ranks on one device are refused, as before 2.30", "[fake_nccl]") {
  std::atomic<int> refused{0};
  run_raw(
      2,
      [&](RawRank& mine) {
        if (settle(mine.comm) == ncclInvalidUsage) ++refused;
        (void)nccl().comm_abort(mine.comm);
      },
      [](int) { return 0; });
  CHECK(refused == 2);
}

TEST_CASE("a communicator on two threads at a time, or after it was freed, is reported", "[fake_nccl]") {
  const auto set_abort = function<void (*)(long)>("fakenccl_set_abort");
  run_raw(1, [&](RawRank& mine) {
    (void)settle(mine.comm);
    set_abort(300);
    const std::size_t before = fakegpu::report_count();
    std::thread second{[&] { (void)nccl().comm_abort(mine.comm); }};
    while (fakegpu::report_count() == before) (void)ask(mine.comm);
    second.join();
    set_abort(0);
    (void)ask(mine.comm);
  });
  const auto reports = fakegpu::take_reports();
  REQUIRE(reports.size() >= 2);
  CHECK_THAT(reports.front(), Catch::Contains("on two threads at a time"));
  CHECK_THAT(reports.back(), Catch::Contains("was freed"));
}

TEST_CASE("a world is split by color and key, and shrinks without the ranks that are left out", "[fake_nccl]") {
  const auto split = function<decltype(&ncclCommSplit)>("ncclCommSplit");
  const auto shrink = function<decltype(&ncclCommShrink)>("ncclCommShrink");
  const auto revoke = function<decltype(&ncclCommRevoke)>("ncclCommRevoke");
  std::atomic<int> problems{0};
  const auto sum_is = [&](ncclComm_t comm, const RawRank& mine, std::uint32_t expected) {
    if (settle(comm) != ncclSuccess) ++problems;
    const OnDevice<std::uint32_t> data{mine.stream.view(), {static_cast<std::uint32_t>(mine.rank) + 1}};
    (void)nccl().all_reduce(data.span().data, data.span().data, 1, ncclUint32, ncclSum, comm, mine.native());
    if (settle(comm) != ncclSuccess || data.values() != std::vector{expected}) ++problems;
  };
  run_raw(4, [&](RawRank& mine) {
    (void)settle(mine.comm);
    ncclComm_t part = nullptr;
    (void)split(mine.comm, mine.rank % 2, -mine.rank, &part, nullptr);
    sum_is(part, mine, mine.rank % 2 == 0 ? 4 : 6);
    (void)nccl().comm_abort(part);
    // Rank 3 dies; the others have agreed on that.
    if (mine.rank == 3) return;
    if (revoke(mine.comm, 0) != ncclInProgress || settle(mine.comm) != ncclSuccess) ++problems;
    if (nccl().comm_finalize(mine.comm) != ncclInvalidUsage) ++problems;
    int gone[] = {3};
    ncclComm_t rest = nullptr;
    (void)shrink(mine.comm, gone, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT);
    sum_is(rest, mine, 6);
    (void)nccl().comm_abort(rest);
    (void)nccl().comm_abort(mine.comm);
  });
  CHECK(problems == 0);
  CHECK(fakegpu::take_reports().empty());
}
