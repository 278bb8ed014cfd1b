// The calls of a process group on device memory, over the fake NCCL: what each does, what is refused, and in which order they run.

#include <algorithm>
#include <numeric>

#include "tests/devices/nccl_world.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t first) {
  std::vector<std::uint32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

void check_moves(DeviceRank& mine) {
  const std::uint32_t rank = mine.rank, world = mine.world;
  constexpr std::size_t count = 1000;
  const Stream stream = mine.stream.view();
  const OnDevice<std::uint32_t> in{stream, numbers(count, rank * 1'000'000)}, all{stream, numbers(count * world, 0)};
  mine.must(mine.calls().all_gather(as_bytes(in.span()), all.bytes()), "all_gather");
  for (std::uint32_t r = 0; r < world; ++r) {
    const auto part = all.values();
    mine.complain(std::ranges::equal(std::span{part}.subspan(r * count, count), numbers(count, r * 1'000'000)), "all_gather is wrong");
  }
  const OnDevice<std::uint32_t> root{stream, numbers(count, rank + 5)};
  mine.must(mine.calls().broadcast(root.bytes(), Rank{world - 1}), "broadcast");
  mine.complain(root.values() == numbers(count, world - 1 + 5), "broadcast is wrong");
  std::vector<std::uint32_t> parts(world * 3);
  for (std::uint32_t r = 0; r < world; ++r) std::fill_n(parts.begin() + r * 3, 3, 10 * rank + r);
  const OnDevice<std::uint32_t> given{stream, parts}, swapped{stream, numbers(world * 3, 0)};
  mine.must(mine.calls().all_to_all(as_bytes(given.span()), swapped.bytes()), "all_to_all");
  const auto got = swapped.values();
  for (std::uint32_t r = 0; r < world; ++r) mine.complain(got[r * 3] == 10 * r + rank, "all_to_all is wrong");
  if (world < 2) return;
  if (rank == 0) mine.must(mine.calls().send(as_bytes(in.span()), Rank{1}), "send");
  if (rank == 1) mine.must(mine.calls().receive(root.bytes(), Rank{0}), "receive");
  if (rank == 1) mine.complain(root.values() == numbers(count, 0), "receive is wrong");
}

void check_reductions(DeviceRank& mine) {
  const std::uint32_t rank = mine.rank, world = mine.world;
  const Stream stream = mine.stream.view();
  const OnDevice<std::uint32_t> sum{stream, {rank + 1, 10, 7}};
  mine.must(mine.calls().all_reduce(sum.span()), "all_reduce");
  mine.complain(sum.values() == std::vector<std::uint32_t>{world * (world + 1) / 2, 10 * world, 7 * world}, "all_reduce is wrong");
  const OnDevice<float> average{stream, {static_cast<float>(rank)}};
  mine.must(mine.calls().all_reduce(average.span(), ReduceOp::avg), "ReduceOp::avg is not defined for integers");
  mine.complain(average.values().front() == static_cast<float>(world - 1) / 2, "the average is wrong");
  const OnDevice<bf16> half{stream, {bf16{0x3f80}}};  // 1.0
  mine.must(mine.calls().all_reduce(half.span()), "bf16");
  const bf16 expected[] = {{0}, {0x3f80}, {0x4000}, {0x4040}, {0x4080}};
  mine.complain(half.values().front() == expected[world], "the sum of bf16 is wrong");
  const OnDevice<std::int64_t> in{stream, std::vector<std::int64_t>(world * 2, -static_cast<std::int64_t>(rank))}, out{stream, {0, 0}};
  mine.must(mine.calls().reduce_scatter(in.read(), out.span(), ReduceOp::min), "reduce_scatter");
  mine.complain(out.values() == std::vector<std::int64_t>(2, -static_cast<std::int64_t>(world - 1)), "reduce_scatter is wrong");
}

}  // namespace

TEST_CASE("calls on device memory do what their names say", "[nccl]") {
  const std::uint32_t world = GENERATE(1u, 2u, 4u);
  CHECK(run_devices(world, [](DeviceRank& mine) {
          check_moves(mine);
          check_reductions(mine);
          mine.complain.must(mine.group.finish(), "finish");
          mine.complain(!mine.calls().broadcast({}, Rank{0}).wait(deadline_in(60s)).ok(), "the group lives on");
        }) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("an exchange of lists moves all pieces in one group of calls", "[nccl]") {
  CHECK(run_devices(3, [](DeviceRank& mine) {
          const Stream stream = mine.stream.view();
          const OnDevice<std::uint32_t> out{stream, numbers(12, mine.rank * 100)}, in{stream, numbers(12, 7)};
          std::vector<DeviceSendList> sends(3);
          std::vector<DeviceReceiveList> receives(3);
          for (std::uint32_t r = 0; r < 3; ++r) {
            for (const auto& [begin, size] : {std::pair{r * 16, 12}, std::pair{r * 16 + 12, 4}, std::pair{r * 16, 0}})
              sends[r].push_back({as_bytes(out.span()).data + begin, static_cast<std::uint64_t>(size)});
            receives[r] = {{in.bytes().data + r * 16, 12}, {in.bytes().data + r * 16 + 12, 4}, {nullptr, 0}};
          }
          mine.must(mine.calls().exchange(sends, receives), "exchange");
          const auto got = in.values();
          for (std::uint32_t r = 0; r < 3; ++r)
            for (std::uint32_t i = 0; i < 4; ++i) mine.complain(got[r * 4 + i] == r * 100 + mine.rank * 4 + i, "a piece is wrong");
          mine.complain.must(mine.group.finish(), "finish");
        }) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a call runs behind what its stream was given before, and before what it is given after", "[nccl]") {
  CHECK(run_devices(2, [](DeviceRank& mine) {
          const auto native = static_cast<cudaStream_t>(mine.stream.view().handle());
          const OnDevice<std::uint32_t> data{mine.stream.view(), numbers(1 << 16, 0)};
          const std::vector<std::uint32_t> ones(1 << 16, 0x0101'0101);
          std::vector<std::uint32_t> got(1 << 16);
          (void)cudaMemsetAsync(data.span().data, 1, got.size() * 4, native);
          const Work work = mine.calls().all_reduce(data.span());
          (void)cudaMemcpyAsync(got.data(), data.span().data, got.size() * 4, cudaMemcpyDeviceToHost, native);
          (void)cudaStreamSynchronize(native);
          mine.must(work, "all_reduce");
          mine.complain(got == std::vector<std::uint32_t>(1 << 16, 0x0202'0202), "not in the stream's order");
          mine.complain.must(mine.group.finish(), "finish");
        }) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("what does not fit is refused before anything moves, and the group lives on", "[nccl]") {
  CHECK(run_devices(2, [](DeviceRank& mine) {
          const OnDevice<std::uint32_t> four{mine.stream.view(), numbers(4, 0)};
          const DeviceSpan<const std::byte> three{four.bytes().data, 3};
          const OwnedStream other{cuda(1 - mine.rank)};
          const auto refused = [&](const Work& work, const std::string& text) {
            const auto result = work.wait(deadline_in(60s));
            mine.complain(!result.ok() && result.failure().code == Code::invalid_argument, "not refused: " + text);
            if (!result.ok()) mine.complain(result.failure().what.find(text) != std::string::npos, message(result.failure()));
          };
          refused(mine.calls().all_gather(three, four.bytes()), "all_gather of 3 bytes from 2 ranks into 16 bytes");
          refused(mine.calls().all_to_all(three, four.bytes()), "all_to_all of 3 bytes");
          refused(mine.calls().broadcast(four.bytes(), Rank{2}), "rank 2 in a world of 2");
          refused(mine.calls().send(three, Rank{mine.rank}), "cannot send to itself");
          refused(mine.calls().all_reduce(four.span(), ReduceOp::avg), "ReduceOp::avg is not defined for integers");
          refused(mine.calls().reduce_scatter(four.read(), four.span()), "reduce_scatter of 4 elements to 4");
          const std::size_t peer = 1 - mine.rank;
          const DeviceSpan<const std::byte> its_bytes{four.bytes().data + 8 * peer, 8};
          const DeviceSpan<std::uint32_t> its_part{four.span().data + 2 * peer, 2};
          refused(mine.calls().all_gather(its_bytes, four.bytes()), "all_gather overlap");
          refused(mine.calls().all_to_all(four.bytes(), four.bytes()), "all_to_all overlap");
          refused(mine.calls().reduce_scatter(four.read(), its_part), "reduce_scatter overlap");
          refused(mine.calls().exchange({}, {}), "one list per rank");
          refused(mine.group.on(Stream{}).broadcast(four.bytes(), Rank{0}), "the host's program order");
          refused(mine.group.on(other.view()).broadcast(four.bytes(), Rank{0}), "one of cuda:");
          refused(mine.group.on({cuda(mine.rank), nullptr}).broadcast(four.bytes(), Rank{0}), "default stream");
          refused(mine.group.on({cuda(mine.rank), cudaStreamLegacy}).broadcast(four.bytes(), Rank{0}), "cudaStreamLegacy");
          refused(
              mine.group.on({cuda(mine.rank), cudaStreamPerThread}).broadcast(four.bytes(), Rank{0}),
              "needs a stream that the program has made there (cudaStreamCreateWithFlags), and got CUDA's default stream of each thread");
          mine.must(mine.calls().broadcast(four.bytes(), Rank{0}), "the group is over");
          mine.complain.must(mine.group.finish(), "finish");
        }) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a group that names no device refuses device memory, and never copies it to the host in silence", "[nccl]") {
  CHECK(run_group(2, [](std::uint32_t, ProcessGroup& group, Complaints& complaints) {
          const auto refused = group.on(Stream{}).broadcast({}, Rank{0}).wait(deadline_in(60s));
          complaints(!refused.ok() && refused.failure().code == Code::invalid_argument &&
                         refused.failure().what.find("GroupOptions::device") != std::string::npos,
                     "not refused");
          complaints.must(group.barrier(), "barrier");
        }) == "");
}

TEST_CASE("a group that is split off has a communicator of its own", "[nccl]") {
  CHECK(run_devices(4, [](DeviceRank& mine) {
          auto part = mine.group.split(mine.rank % 2);
          mine.complain(part.ok() && part->has_value(), "split");
          if (!part.ok() || !part->has_value()) return;
          const OnDevice<std::uint32_t> sum{mine.stream.view(), {mine.rank}};
          const auto done = (*part)->on(mine.stream.view()).all_reduce(sum.span());
          mine.must(done, "in the part");
          mine.complain(sum.values().front() == (mine.rank % 2 == 0 ? 2u : 4u), "the part's sum is wrong");
          mine.complain.must((*part)->finish(), "finish of the part");
          mine.must(mine.calls().all_reduce(sum.span()), "in the whole");
          mine.complain(sum.values().front() == 12, "the whole's sum is wrong");
          mine.complain.must(mine.group.finish(), "finish");
        }) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("calls under way on several streams end each by itself", "[nccl]") {
  CHECK(run_devices(2, [](DeviceRank& mine) {
          const OwnedStream second{cuda(mine.rank)};
          const OnDevice<std::uint32_t> a{mine.stream.view(), numbers(100, 0)}, b{second.view(), numbers(100, 5)};
          std::vector<Work> works;
          for (int i = 0; i < 20; ++i) {
            works.push_back(mine.calls().broadcast(a.bytes(), Rank{0}));
            works.push_back(mine.group.on(second.view()).broadcast(b.bytes(), Rank{1}));
          }
          for (const Work& work : works) mine.must(work, "broadcast");
          mine.complain.must(mine.group.finish(), "finish");
        }) == "");
  CHECK(fakegpu::take_reports().empty());
}
