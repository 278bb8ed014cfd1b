// How device collectives end that cannot succeed: generations that are over, deadlines, peers that never come, other orders of calls, storms of aborts.

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "lib/comm/nccl/communicator.hpp"
#include "tests/devices/nccl_world.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

bool full() { return std::getenv("ELRUN_FULL") != nullptr; }

/// One generation in which everything succeeds, to the end.
std::string whole_generation(std::uint32_t world, std::uint64_t number = 1) {
  LocalWorld local{world, number};
  Complaints complaints;
  run_devices(local, complaints, [](DeviceRank& mine) {
    const OnDevice<std::uint32_t> sum{mine.stream.view(), std::vector<std::uint32_t>(500, mine.rank)};
    mine.must(mine.calls().all_reduce(sum.span()), "all_reduce");
    mine.complain(sum.values() == std::vector<std::uint32_t>(500, mine.world * (mine.world - 1) / 2), "the sum is wrong");
    mine.complain.must(mine.group.finish(), "finish");
  });
  return complaints.all();
}

/// Between fakes and product: the hook of one test.
struct AtCall {
  std::uint64_t at = 0;
  std::function<void()> act;
  std::once_flag once;
};
void on_call(void* data, std::uint64_t number, const char*) {
  auto& at_call = *static_cast<AtCall*>(data);
  if (number >= at_call.at) std::call_once(at_call.once, at_call.act);
}

const Failure killed{.code = Code::peer_lost, .remedy = Remedy::rejoin, .what = "rank 9 was killed"};

}  // namespace

TEST_CASE("a world is rebuilt again and again and leaves nothing behind", "[nccl]") {
  CHECK(whole_generation(3) == "");
  const HeldByProcess before = HeldByProcess::now();
  const std::uint64_t generations = full() ? 1000 : 100;
  for (std::uint64_t number = 2; number < generations + 2; ++number) REQUIRE(whole_generation(3, number) == "");
  const HeldByProcess after = HeldByProcess::now();
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.threads == before.threads);
  CHECK((before.communicators == 0 && after.communicators == 0));
  CHECK(after.devices == before.devices);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a communicator for whose owner there is no thread is a failure", "[nccl]") {
  REQUIRE(whole_generation(1) == "");
  LocalWorld local{1};
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  pthread_attr_t usual, huge;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_attr_init(&huge) == 0);
  REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0);  // no machine has room for it
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  const auto group = ProcessGroup::join(local.session(0), device_options(0));
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  REQUIRE(!group.ok());
  CHECK(group.failure().code == Code::exhausted);
  CHECK(group.failure().rank == Rank{0});
  CHECK(group.failure().what.find("make a communicator of NCCL: no thread could be started") != std::string::npos);
}

TEST_CASE("when the generation is over, calls that wait for a peer end, their streams drain, and the next generation works", "[nccl]") {
  LocalWorld local{3};
  Complaints complaints;
  std::atomic<int> waiting{0};
  run_devices(local, complaints, [&](DeviceRank& mine) {
    const OnDevice<std::uint32_t> data{mine.stream.view(), std::vector<std::uint32_t>(500, mine.rank)};
    mine.must(mine.calls().broadcast(data.bytes(), Rank{0}), "before");
    if (mine.rank == 2) {  // never makes the next call
      while (waiting < 2) std::this_thread::yield();
      local.end_generation(killed);
      return;
    }
    const Work work = mine.calls().all_reduce(data.span());
    ++waiting;
    const auto result = work.wait(deadline_in(60s));
    mine.complain(!result.ok() && result.failure().code == Code::generation_over &&
                      result.failure().what.find("rank 9 was killed") != std::string::npos && result.failure().rank == Rank{mine.rank},
                  result.ok() ? "it succeeded without rank 2" : message(result.failure()));
    // Behind the aborted call the stream runs on; nothing says so but the Work.
    mine.complain(cudaStreamSynchronize(static_cast<cudaStream_t>(mine.stream.view().handle())) == cudaSuccess, "the stream did not drain");
    const auto later = mine.calls().broadcast(data.bytes(), Rank{0}).wait(deadline_in(60s));
    mine.complain(!later.ok() && later.failure().code == Code::generation_over, "a later call did not fail the same way");
  });
  CHECK(complaints.all() == "");
  CHECK(whole_generation(3, 2) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a call whose peer never comes ends by its deadline, and names rank, generation, device and remedy", "[nccl]") {
  LocalWorld local{2, 7};
  Complaints complaints;
  std::atomic<bool> over{false};
  run_devices(local, complaints, [&](DeviceRank& mine) {
    if (mine.rank == 1) {
      while (!over) std::this_thread::sleep_for(1ms);
      return;
    }
    const OnDevice<std::uint32_t> data{mine.stream.view(), {1, 2, 3}};
    mine.group.set_deadline(300ms);
    const auto result = mine.calls().all_reduce(data.span()).wait(deadline_in(60s));
    over = true;
    const std::string text = result.ok() ? "it succeeded alone" : message(result.failure());
    for (const char* part : {"deadline_passed", "rank 0 of generation 7", "ncclAllReduce on cuda:0 with 2 ranks was not over within 300 ms",
                             "give the process group up"})
      mine.complain(text.find(part) != std::string::npos, text);
  });
  CHECK(complaints.all() == "");
  CHECK(whole_generation(2, 8) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a communicator for which a peer never comes ends by its deadline, with who, where and what to do", "[nccl]") {
  const NcclLibrary nccl = NcclLibrary::load().value();
  ncclUniqueId id{};
  REQUIRE(nccl.get_unique_id(&id) == ncclSuccess);
  NcclGroup group{.place = {.me = {{5, {{0x1234'5678'0000'0000, 1}}}, Rank{0}, WorldSize{2}}, .device = cuda(1), .group = "weights"},
                  .ids = {NcclId{}},
                  .connect = 300ms};
  std::ranges::copy(std::as_bytes(std::span{id.internal}), group.ids.front().begin());
  const auto made = NcclCommunicator::make(nccl, group);
  REQUIRE(!made.ok());
  CHECK_THAT(message(made.failure()), Catch::Contains("deadline_passed: rank 0 of generation 5@12345678") &&
                                          Catch::Contains("\"weights\"") &&
                                          Catch::Contains("making the communicator on cuda:1 with 2 ranks was not over within 300 ms") &&
                                          Catch::Contains("give the process group up"));
  CHECK(HeldByProcess::now().communicators == 0);
}

namespace {

/// Each rank sends to the next, then receives from the one before. Nothing: it went round, and brought what it should.
std::optional<Failure> go_round(DeviceRank& mine, std::size_t count, bool two_streams) {
  const OwnedStream second{cuda(mine.rank)};
  const Stream receiving = two_streams ? second.view() : mine.stream.view();
  const std::vector<std::uint32_t> from_before(count, (mine.rank + mine.world - 1) % mine.world);
  const OnDevice<std::uint32_t> out{mine.stream.view(), std::vector<std::uint32_t>(count, mine.rank)},
      in{receiving, std::vector<std::uint32_t>(count, 9)};
  const Work sent = mine.calls().send(as_bytes(out.span()), Rank{(mine.rank + 1) % mine.world});
  const Work received = mine.group.on(receiving).receive(in.bytes(), Rank{from_before.front()});
  for (const Work& work : {sent, received})
    if (auto result = work.wait(deadline_in(60s)); !result.ok()) return std::move(result).failure();
  mine.complain(in.values() == from_before, "the ring brought something else");
  return std::nullopt;
}

GroupOptions connected_options(std::uint32_t rank) {
  GroupOptions options = device_options(rank);
  options.connect_pairs = true;
  return options;
}

}  // namespace

TEST_CASE("ranks of a ring that send before they receive wait for each other until the deadline where they are not connected", "[nccl]") {
  LocalWorld local{3};
  Complaints complaints;
  std::atomic<int> late{0};
  const bool two_streams = GENERATE(false, true);
  run_devices(local, complaints, [&](DeviceRank& mine) {
    mine.group.set_deadline(300ms);
    const auto failed = go_round(mine, 1, two_streams);
    if (!failed) return mine.complain(false, "a ring of send and receive went round");
    if (failed->code == Code::deadline_passed && message(*failed).find("ncclSend on cuda:") != std::string::npos) ++late;
  });
  CHECK(complaints.all() == "");
  CHECK(late >= 1);  // of the others some hear of that
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE(
    "with connect_pairs a ring that sends before it receives goes round in a new group, in one that is split off, and after a failure",
    "[nccl]") {
  const bool two_streams = GENERATE(false, true);
  const auto expect = [&](DeviceRank& mine) {
    if (const auto failed = go_round(mine, 1000, two_streams)) mine.complain(false, message(*failed));
  };
  Complaints complaints;
  LocalWorld first{3}, second{4, 2};
  run_devices(
      first, complaints,
      [&](DeviceRank& mine) {
        expect(mine);
        expect(mine);
        if (mine.rank == 2) return;  // lost; the others notice it in a call
        const OnDevice<std::uint32_t> sum{mine.stream.view(), {1}};
        mine.complain(!mine.calls().all_reduce(sum.span()).wait(deadline_in(60s)).ok(), "a rank is gone");
      },
      connected_options);
  run_devices(
      second, complaints,
      [&](DeviceRank& mine) {
        expect(mine);
        auto part = mine.group.split(mine.rank < 3 ? 0 : 1);
        mine.complain(part.ok() && part->has_value(), "split");
        if (!part.ok() || !part->has_value()) return;
        if (mine.rank < 3) {
          DeviceRank in_part{mine.rank, 3, **part, OwnedStream{cuda(mine.rank)}, complaints};
          expect(in_part);
        }
        mine.complain.must((*part)->finish(), "finish of the part");
        mine.complain.must(mine.group.finish(), "finish");
      },
      connected_options);
  CHECK(complaints.all() == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("an exchange connects the ranks that move bytes in it", "[nccl]") {
  CHECK(run_devices(3, [](DeviceRank& mine) {
          const OnDevice<std::uint32_t> out{mine.stream.view(), {mine.rank}}, in{mine.stream.view(), {9}};
          std::vector<DeviceSendList> sends(3);
          std::vector<DeviceReceiveList> receives(3);
          sends[(mine.rank + 1) % 3] = {as_bytes(out.span())};
          receives[(mine.rank + 2) % 3] = {in.bytes()};
          mine.must(mine.calls().exchange(sends, receives), "exchange");
          mine.complain(in.values().front() == (mine.rank + 2) % 3, "the exchange is wrong");
          if (const auto failed = go_round(mine, 1, true)) mine.complain(false, message(*failed));
          mine.complain.must(mine.group.finish(), "finish");
        }) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a ring of messages that fit in no buffer of NCCL waits until the deadline, connected or not, on one stream or two", "[nccl]") {
  LocalWorld local{3};
  Complaints complaints;
  const bool two_streams = GENERATE(false, true);
  run_devices(
      local, complaints,
      [&](DeviceRank& mine) {
        mine.group.set_deadline(300ms);
        mine.complain(go_round(mine, 1 << 16, two_streams).has_value(), "a ring of large messages went round");
      },
      connected_options);
  CHECK(complaints.all() == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("pairs that cannot be connected end the join within its limit, with what was done", "[nccl]") {
  // The first call of NCCL that moves bytes: rank 1 never comes to it.
  REQUIRE(whole_generation(2) == "");
  const auto set_hook = in_fake_nccl<void (*)(FakeNcclHook, void*)>("fakenccl_set_hook");
  static std::atomic<bool> released{false}, held{false};
  released = held = false;
  set_hook(
      [](void*, std::uint64_t, const char* name) {
        if (std::string_view{name} != "ncclSend" || held.exchange(true)) return;
        while (!released) std::this_thread::sleep_for(1ms);
      },
      nullptr);
  LocalWorld local{2, 3};
  Complaints complaints;
  std::atomic<int> named{0};
  local.run([&](std::uint32_t rank, Session& session) {
    (void)cudaSetDevice(static_cast<int>(rank));
    GroupOptions options = connected_options(rank);
    options.connect = 3s;  // the host's connections are made in it, too
    const auto group = ProcessGroup::join(session, options);
    released = true;
    if (group.ok()) return complaints(false, "it was made");
    const std::string text = message(group.failure());
    if (text.find("connecting all pairs of ranks: an exchange on cuda:") != std::string::npos) ++named;
    complaints(text.find("of generation 3") != std::string::npos, text);
  });
  set_hook(nullptr, nullptr);
  CHECK(complaints.all() == "");
  CHECK(named >= 1);
  CHECK(HeldByProcess::now().communicators == 0);
  CHECK(whole_generation(2, 4) == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a group that its ranks cannot make draws no id, for which NCCL keeps a thread and a socket", "[nccl]") {
  REQUIRE(whole_generation(1) == "");  // the library is there
  std::atomic<int> drawn{0};
  const auto set_hook = in_fake_nccl<void (*)(FakeNcclHook, void*)>("fakenccl_set_hook");
  set_hook(
      [](void* count, std::uint64_t, const char* name) {
        if (std::string_view{name} == "ncclGetUniqueId") ++*static_cast<std::atomic<int>*>(count);
      },
      &drawn);
  LocalWorld local{2};
  Complaints complaints;
  run_devices(
      local, complaints, [](DeviceRank&) {}, [](std::uint32_t) { return device_options(0); });
  CHECK_THAT(complaints.all(), Catch::Contains("ranks 0 and 1 use one device"));
  CHECK(drawn == 0);
  CHECK(whole_generation(2, 2) == "");
  CHECK(drawn == 1);
  set_hook(nullptr, nullptr);
}

TEST_CASE("a communicator of a generation that is over already is not begun, for its making may wait inside NCCL", "[nccl]") {
  const NcclLibrary nccl = NcclLibrary::load().value();
  static std::atomic<int> begun{0};
  begun = 0;
  const auto set_hook = in_fake_nccl<void (*)(FakeNcclHook, void*)>("fakenccl_set_hook");
  set_hook([](void*, std::uint64_t, const char* name) { begun += std::string_view{name}.starts_with("ncclCommInit") ? 1 : 0; }, nullptr);
  const NcclGroup group{.place = {.me = {{5, {}}, Rank{0}, WorldSize{2}}, .device = cuda(1)},
                        .ids = {NcclId{}},
                        .connect = 60s,
                        .on_generation_over = [](const std::function<void(const Failure&)>& call) { call(killed); }};
  const auto made = NcclCommunicator::make(nccl, group);
  set_hook(nullptr, nullptr);
  REQUIRE(!made.ok());
  CHECK(made.failure().code == Code::generation_over);
  CHECK(begun == 0);
}

TEST_CASE("a group on a device that is not there leaves no error of CUDA for the program's next launch", "[nccl]") {
  LocalWorld local{1};
  Complaints complaints;
  local.run([&](std::uint32_t, Session& session) {
    const auto group = ProcessGroup::join(session, device_options(40));
    complaints(!group.ok() && group.failure().what.find("cuda:40 cannot be used") != std::string::npos,
               group.ok() ? "it was made" : message(group.failure()));
    complaints(cudaGetLastError() == cudaSuccess, "an error is left");
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("a group fails on all ranks where one of them gives NCCL an address for all groups", "[nccl]") {
  REQUIRE(::setenv("NCCL_COMM_ID", "127.0.0.1:5000", 1) == 0);
  const std::string complaints = whole_generation(2);
  REQUIRE(::unsetenv("NCCL_COMM_ID") == 0);
  CHECK_THAT(complaints, Catch::Contains("rank 0 of generation 1") && Catch::Contains("rank 1 of generation 1") &&
                             Catch::Contains("rank 0 cannot use NCCL: NCCL_COMM_ID is set") && Catch::Contains("unset it"));
  CHECK(HeldByProcess::now().communicators == 0);
}

TEST_CASE("a peer that leaves while a call needs it is named a second later", "[nccl]") {
  LocalWorld local{2};
  Complaints complaints;
  run_devices(local, complaints, [&](DeviceRank& mine) {
    if (mine.rank == 1) return;  // its connections close
    const OnDevice<std::uint32_t> data{mine.stream.view(), {1, 2, 3}};
    const auto result = mine.calls().all_reduce(data.span()).wait(deadline_in(60s));
    mine.complain(!result.ok() && result.failure().code == Code::peer_lost && result.failure().peer == Rank{1} &&
                      result.failure().remedy == Remedy::rejoin,
                  result.ok() ? "it succeeded alone" : message(result.failure()));
  });
  CHECK(complaints.all() == "");
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("ranks that make different calls hang, and are reported by the fake", "[nccl]") {
  const std::size_t before = fakegpu::report_count();
  const std::string complaints = run_devices(2, [before](DeviceRank& mine) {
    const OnDevice<std::uint32_t> data{mine.stream.view(), {1, 2, 3, 4}};
    const Work work = mine.rank == 0 ? mine.calls().all_reduce(data.span()) : mine.calls().broadcast(data.bytes(), Rank{0});
    const Deadline deadline = deadline_in(60s);
    while (fakegpu::report_count() == before && !deadline.passed(SteadyClock{}.now())) std::this_thread::sleep_for(1ms);
    mine.complain(!work.done(), "it is over");
    mine.complain.must(mine.group.barrier(), "barrier");
    mine.group.revoke(killed);
    mine.complain(!work.wait(deadline_in(60s)).ok(), "it succeeded");
  });
  CHECK(complaints == "");
  const auto reports = fakegpu::take_reports();
  REQUIRE(!reports.empty());
  CHECK_THAT(reports.front(),
             Catch::Contains("ncclAllReduce of 16 bytes") && Catch::Contains("ncclBroadcast of 16 bytes") && Catch::Contains("hang"));
}

TEST_CASE("a generation that ends at any call of NCCL leaves no wait, no wrong success and nothing behind", "[nccl]") {
  CHECK(whole_generation(2) == "");
  const HeldByProcess before = HeldByProcess::now();
  const auto set_hook = in_fake_nccl<void (*)(FakeNcclHook, void*)>("fakenccl_set_hook");
  const auto calls = in_fake_nccl<std::uint64_t (*)()>("fakenccl_calls");
  const auto generation = [&](LocalWorld& local, Complaints& complaints) {
    local.run([&](std::uint32_t rank, Session& session) {
      (void)cudaSetDevice(static_cast<int>(rank));
      const OwnedStream stream{cuda(rank)};
      auto group = ProcessGroup::join(session, connected_options(rank));
      if (!group.ok()) return complaints(group.failure().code == Code::generation_over, message(group.failure()));
      const OnDevice<std::uint32_t> data{stream.view(), std::vector<std::uint32_t>(300, rank + 1)};
      for (int i = 0; i < 3; ++i) {
        const auto result = group->on(stream.view()).all_reduce(data.span()).wait(deadline_in(60s));
        if (!result.ok()) return complaints(result.failure().code == Code::generation_over, message(result.failure()));
        complaints(data.values().front() == 3u << i, "a call that succeeded has brought garbage");
      }
      const auto finished = group->finish();
      if (!finished.ok()) complaints(finished.failure().code == Code::generation_over, message(finished.failure()));
    });
  };
  const std::uint64_t begin = calls();
  LocalWorld undisturbed{2, 2};
  Complaints none;
  generation(undisturbed, none);
  REQUIRE(none.all() == "");
  const std::uint64_t count = calls() - begin;  // of both ranks; how often they ask differs a little
  REQUIRE(count > 20);
  const std::uint64_t stride = full() ? 1 : 1 + count / 60;
  for (std::uint64_t k = 1; k <= count; k += stride) {
    INFO("call " << k << " of " << count);
    LocalWorld local{2, 2 + k};
    Complaints complaints;
    AtCall at_call{.at = calls() + k, .act = [&] { std::thread{[&] { local.end_generation(killed); }}.join(); }};
    set_hook(on_call, &at_call);
    generation(local, complaints);
    set_hook(nullptr, nullptr);
    REQUIRE(complaints.all() == "");
  }
  CHECK(whole_generation(2, 100'000) == "");
  CHECK(HeldByProcess::now() == before);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("storms of aborts from all sides end every call once, and the next generation works", "[nccl]") {
  CHECK(whole_generation(3) == "");
  const HeldByProcess before = HeldByProcess::now();
  for (std::uint64_t round = 0; round < (full() ? 200u : 20u); ++round) {
    LocalWorld local{3, 2 + round};
    Complaints complaints;
    std::atomic<bool> go{false};
    std::thread storm{[&] {
      while (!go) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds{517 * (round % 23)});
      local.end_generation(killed);
    }};
    local.run([&](std::uint32_t rank, Session& session) {
      (void)cudaSetDevice(static_cast<int>(rank));
      const auto over = [&](const Failure& why) {
        complaints(why.code == Code::generation_over || why.code == Code::peer_lost, message(why));
      };
      go = true;
      auto group = ProcessGroup::join(session, device_options(rank));
      if (!group.ok()) return over(group.failure());
      const OwnedStream stream{cuda(rank)};
      const OnDevice<std::uint32_t> data{stream.view(), std::vector<std::uint32_t>(300, rank)};
      std::thread second;
      if (rank == 1) second = std::thread{[&] { group->revoke(killed); }};
      std::vector<Work> works;
      for (int i = 0; i < 5; ++i) works.push_back(group->on(stream.view()).broadcast(data.bytes(), Rank{0}));
      for (const Work& work : works)
        if (const auto result = work.wait(deadline_in(60s)); !result.ok()) over(result.failure());
      if (second.joinable()) second.join();
    });
    storm.join();
    REQUIRE(complaints.all() == "");
  }
  CHECK(whole_generation(3, 1000) == "");
  CHECK(HeldByProcess::now() == before);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a call of NCCL that fails ends the group with code, device and remedy", "[nccl]") {
  // The other rank is told by the host's group, or by its deadline.
  LocalWorld local{2};
  Complaints complaints;
  const NcclLibrary nccl = NcclLibrary::load().value();
  run_devices(local, complaints, [&](DeviceRank& mine) {
    if (mine.rank == 1) return;
    const std::vector<std::uint32_t> on_host{1, 2, 3};
    const DeviceSpan<std::byte> wrong{reinterpret_cast<std::byte*>(const_cast<std::uint32_t*>(on_host.data())), 12};
    const auto result = mine.calls().broadcast(wrong, Rank{0}).wait(deadline_in(60s));
    mine.complain(!result.ok() && result.failure().code == Code::invalid_argument &&
                      result.failure().what.find("ncclBroadcast on cuda:0") != std::string::npos,
                  result.ok() ? "it succeeded" : message(result.failure()));
  });
  CHECK(complaints.all() == "");
  const auto reports = fakegpu::take_reports();
  REQUIRE(reports.size() == 1);
  CHECK_THAT(reports.front(), Catch::Contains("memory that is not that device's"));
}
