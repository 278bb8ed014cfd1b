// How calls end that cannot succeed: wrong arguments, differing calls, revocation, deadlines, lost peers.

#include <elrun/process_group.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <future>
#include <latch>
#include <map>
#include <mutex>
#include <thread>

#include "lib/link/socket.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process_groups.hpp"
#include "tests/support/program.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("bad arguments are answered before anything moves, and the group lives on", "[process_group]") {
  CHECK(run_group(2, [](std::uint32_t, ProcessGroup& group, Complaints& complaints) {
          std::vector<std::byte> three(3), four(4);
          std::vector<std::int32_t> integers(4);
          const auto invalid = [&](const Result<void>& result) {
            complaints(!result.ok() && result.failure().code == Code::invalid_argument, "not refused");
          };
          invalid(group.all_gather(three, four));
          invalid(group.all_to_all(three, three));
          invalid(group.broadcast(three, Rank{2}));
          invalid(group.send(three, group.membership().rank));
          invalid(group.all_reduce(std::span{integers}, ReduceOp::avg));
          invalid(group.exchange({}, {}));
          std::vector<SendList> to(2);
          std::vector<ReceiveList> from(2);
          to[group.membership().rank.value()] = {three};  // more than it receives of it
          invalid(group.exchange(to, from));
          complaints.must(group.barrier(), "barrier");
        }) == "");
}

TEST_CASE("buffers that overlap are refused before anything moves, but for a rank's own part", "[process_group]") {
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  CHECK(run_group(
            3,
            [](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
              const auto invalid = [&](const Result<void>& result) {
                complaints(!result.ok() && result.failure().code == Code::invalid_argument, "not refused");
              };
              constexpr std::size_t part = 1000, other = 2000, beside = 1;
              std::vector<std::byte> bytes(3 * part);
              const std::span<std::byte> all{bytes};
              invalid(group.all_to_all(all, all));
              invalid(group.all_gather(all.subspan((rank * part + other) % (3 * part), part), all));
              invalid(group.all_gather(all.subspan(rank == 2 ? rank * part - beside : rank * part + beside, part), all));
              const SharedBuffer shared = SharedBuffer::make(3_MiB).value();
              for (const bool reads_in_place : {false, true}) {  // by peers, once the buffer is shared
                if (reads_in_place) complaints.must(group.share(shared), "share");
                const std::span<std::uint32_t> data = shared.as<std::uint32_t>();
                const std::size_t mine = data.size() / 3;
                std::ranges::fill(data, rank + 1);
                const std::span<const std::uint32_t> in = data.first(3 * mine);
                invalid(group.reduce_scatter(in, data.subspan((rank + 1) % 3 * mine, mine)));
                invalid(group.reduce_scatter(in, data.subspan(rank == 2 ? rank * mine - beside : rank * mine + beside, mine)));
                complaints.must(group.reduce_scatter(in, data.subspan(rank * mine, mine)), "reduce_scatter in place");
                complaints(std::ranges::all_of(data.subspan(rank * mine, mine), [](std::uint32_t x) { return x == 6; }),
                           "the sum is wrong");
              }
            },
            Transports(3, transport)) == "");
}

TEST_CASE("ranks that make different calls are told so, with both lengths", "[process_group]") {
  const std::string complaints = run_group(2, [](std::uint32_t rank, ProcessGroup& group, Complaints& complain) {
    std::vector<std::byte> in(rank == 0 ? 10 : 20), out(2 * in.size());
    const auto result = group.all_gather(in, out);
    complain(result.ok(), result.ok() ? "" : message(result.failure()));
    if (!result.ok()) complain(!group.barrier().ok(), "the group lives on");
  });
  CHECK_THAT(complaints, Catch::Contains("protocol") && Catch::Contains("different calls") && !Catch::Contains("lives on"));
}

TEST_CASE("ranks whose calls differ in kind, type or operation are told both, though lengths agree", "[process_group]") {
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  const std::size_t count = GENERATE(6u, 60'000u);  // gathered as a whole, and in rounds
  const auto differ = [&](auto one, auto others) {
    return run_group(
        3,
        [&](std::uint32_t rank, ProcessGroup& group, Complaints& complain) {
          complain(group.barrier().ok(), "alike, and a failure");
          const Result<void> result = rank == 1 ? one(group) : others(group);
          complain(result.ok(), result.ok() ? "" : message(result.failure()));
          complain(!result.ok(), "it succeeded");
        },
        Transports(3, transport));
  };
  const auto reduces = [&](auto element, ReduceOp op) {
    return [count, element, op](ProcessGroup& group) {
      std::vector<decltype(element)> data(count, element);
      return group.all_reduce(std::span{data}, op);
    };
  };
  const auto check = [](const std::string& said, const char* one, const char* other) {
    CHECK_THAT(said, Catch::Contains("protocol") && Catch::Contains(one) && Catch::Contains(other) && Catch::Contains("different calls") &&
                         !Catch::Contains("it succeeded") && !Catch::Contains("alike"));
  };
  check(differ(reduces(std::int32_t{1}, ReduceOp::max), reduces(std::int32_t{1}, ReduceOp::sum)), "all_reduce of i32 by max",
        "all_reduce of i32 by sum");
  check(differ(reduces(std::int32_t{1}, ReduceOp::sum), reduces(float{1}, ReduceOp::sum)), "all_reduce of i32 by sum",
        "all_reduce of f32 by sum");
  const auto gathers = [&](ProcessGroup& group) {
    const std::vector<std::byte> in(count);
    std::vector<std::byte> out(3 * count);
    return group.all_gather(in, out);
  };
  const auto swaps = [&](ProcessGroup& group) {
    const std::vector<std::byte> in(3 * count);
    std::vector<std::byte> out(3 * count);
    return group.all_to_all(in, out);
  };
  check(differ(gathers, swaps), "all_gather", "all_to_all");
  const auto gathers_one = [](ProcessGroup& group) {
    const std::byte in{};
    std::array<std::byte, 3> out{};
    return group.all_gather(std::span{&in, 1}, out);
  };
  check(differ([](ProcessGroup& group) { return group.barrier(); }, gathers_one), "barrier", "all_gather");
}

TEST_CASE("the text of a label is asked for on the thread of the call, and may be missing", "[process_group]") {
  static thread_local bool calls = false;
  static std::atomic<int> elsewhere{0};
  const auto name = [](std::uint16_t label) -> const char* {
    if (!calls) ++elsewhere;
    return label == 3 ? "training" : nullptr;
  };
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  const std::string complaints = run_group(
      2,
      [&](std::uint32_t rank, ProcessGroup& group, Complaints& complain) {
        calls = true;
        group.set_label(rank == 0 ? 3 : 4, name);
        for (int twice = 0; twice < 2; ++twice) {
          const auto result = group.barrier();
          complain(result.ok(), result.ok() ? "" : message(result.failure()));
        }
      },
      Transports(2, transport));
  CHECK_THAT(complaints, Catch::Contains("mismatch") && Catch::Contains("training") && Catch::Contains("a call of kind 4"));
  CHECK(elsewhere == 0);
}

TEST_CASE("ranks whose calls have different labels are told both, though lengths agree", "[process_group]") {
  const bool reduces = GENERATE(false, true);
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  const auto name = [](std::uint16_t label) { return label == 3 ? "training" : label == 4 ? "testing" : "anything else"; };
  const std::string complaints = run_group(
      2,
      [&](std::uint32_t rank, ProcessGroup& group, Complaints& complain) {
        group.set_label(7, name);
        complain(group.barrier().ok(), "one label, and a failure");
        group.set_label(rank == 0 ? 3 : 4, name);
        std::vector<float> data(reduces ? 300'000 : 4);
        const auto result = group.all_reduce(std::span{data});
        complain(result.ok(), result.ok() ? "" : message(result.failure()));
        if (!result.ok()) complain(!group.barrier().ok(), "the group lives on");
      },
      Transports(2, transport));
  CHECK_THAT(complaints,
             Catch::Contains("mismatch") && Catch::Contains("training") && Catch::Contains("testing") && !Catch::Contains("lives on"));
  CHECK_THAT(complaints, !Catch::Contains("one label"));
}

TEST_CASE("a call after finish says so, and not that the generation is over", "[process_group]") {
  CHECK(run_group(2, [](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
          complaints.must(group.finish(), "finish");
          for (const auto& result : {group.barrier(), group.barrier_async().wait(deadline_in(60s)), group.finish()}) {
            if (result.ok()) return complaints(false, "a call after the end succeeded");
            const Failure& why = result.failure();
            complaints(why.code == Code::refused && why.rank == Rank{rank} && why.what == "the group was finished", message(why));
          }
        }) == "");
}

TEST_CASE("a group that was moved from refuses its calls", "[process_group]") {
  CHECK(run_group(2, [](std::uint32_t, ProcessGroup& group, Complaints& complaints) {
          ProcessGroup moved = std::move(group);
          std::vector<float> data(4);
          // NOLINTBEGIN(bugprone-use-after-move): that is what is asked
          group.set_label(1);
          group.set_deadline(1s);
          group.revoke({Code::refused, Remedy::abort_group, "nobody hears this"});
          for (const auto& result : {group.barrier(), group.barrier_async().wait(deadline_in(60s)), group.all_reduce(std::span{data}),
                                     group.finish(), group.on(Stream{}).broadcast({}, Rank{0}).wait(deadline_in(60s))}) {
            if (result.ok()) return complaints(false, "a call of a group that was moved from succeeded");
            complaints(result.failure().code == Code::refused, message(result.failure()));
          }
          complaints(!group.split(1).ok(), "it was split");
          // NOLINTEND(bugprone-use-after-move)
          complaints.must(moved.barrier(), "a barrier of the group that is there");
          group = std::move(moved);
        }) == "");
}

TEST_CASE("peers hear of a group's end although a forked child lives on", "[process_group]") {
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  LocalWorld local{2};
  Complaints complaints;
  std::latch heard{2};
  local.run([&](std::uint32_t rank, Session& session) {
    std::optional group{ProcessGroup::join(session, {.connect = 30s, .collective = 20s, .transport = transport}).value()};
    if (rank == 1) {
      const auto result = group->barrier();
      complaints(!result.ok() && result.failure().code == Code::peer_lost, result.ok() ? "it succeeded" : message(result.failure()));
      return heard.arrive_and_wait();
    }
    const pid_t child = ::fork();
    if (child == 0)
      for (;;) ::pause();
    group.reset();
    heard.arrive_and_wait();
    complaints(::kill(child, SIGKILL) == 0 && ::waitpid(child, nullptr, 0) == child, "no child");
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("in a forked child every call of a group is refused, also behind asynchronous ones, and the parent's group lives on",
          "[process_group]") {
  const std::uint32_t world = GENERATE(1u, 2u);
  CHECK(run_group(world, [](std::uint32_t, ProcessGroup& group, Complaints& complaints) {
          complaints.must(group.barrier_async().wait(deadline_in(60s)), "barrier");
          const pid_t child = ::fork();
          if (child == 0) {
            ::alarm(30);  // where a call never returns
            const auto refused = [](const Result<void>& result) {
              return !result.ok() && result.failure().code == Code::refused && result.failure().remedy == Remedy::exit_process;
            };
            bool all = refused(group.barrier());
            all = refused(group.barrier_async().wait(deadline_in(20s))) && all;
            all = refused(group.barrier()) && all;
            group.revoke({.code = Code::peer_lost, .what = "by a child"});
            ::_exit(all ? 0 : 1);
          }
          int status = -1;
          complaints(::waitpid(child, &status, 0) == child && status == 0, "not refused in the child");
          complaints.must(group.barrier(), "the parent's barrier");
        }) == "");
}

TEST_CASE("revocation ends a call that waits, and all calls after it", "[process_group]") {
  const bool by_session = GENERATE(false, true);
  const std::uint32_t world = GENERATE(1u, 2u);
  LocalWorld local{world};
  std::vector<std::optional<ProcessGroup>> groups(world);
  local.run([&](std::uint32_t rank, Session& session) { groups[rank].emplace(std::move(ProcessGroup::join(session, patient)).value()); });
  auto waits = std::async(std::launch::async, [&] {
    while (world == 1 && groups[0]->barrier().ok()) std::this_thread::yield();  // a world of one never waits
    return groups[0]->barrier();
  });
  const Failure why{.code = Code::peer_lost, .remedy = Remedy::rejoin, .what = "rank 1 was killed", .peer = Rank{1}};
  if (by_session) local.end_generation(why);
  else groups[0]->revoke(why);
  const auto ended = waits.get();
  REQUIRE(!ended.ok());
  CHECK(ended.failure().code == Code::generation_over);
  CHECK(ended.failure().rank == Rank{0});
  CHECK(ended.failure().peer == Rank{1});
  CHECK_THAT(ended.failure().what, Catch::Contains("rank 1 was killed"));
  CHECK(groups[0]->barrier().failure().code == Code::generation_over);
}

TEST_CASE("revocation in the middle of large calls leaves nobody behind, and no call that succeeds has wrong bits", "[process_group]") {
  const bool one_alone = GENERATE(false, true);  // or the whole generation
  for_all_seeds(one_alone ? 30 : 10, [&](Rng& rng) {
    std::array<std::vector<std::int64_t>, 3> given;
    std::vector<std::int64_t> sums(3 * 8192);
    for (auto& of_rank : given)
      for (std::int64_t& sum : sums) sum += of_rank.emplace_back(static_cast<std::int64_t>(rng.below(1'000'000'000)));
    LocalWorld local{3};
    std::atomic<std::uint64_t> calls = 0;
    std::atomic<ProcessGroup*> to_revoke = nullptr;
    std::latch over{4};  // until then the group that is revoked is there
    const std::uint64_t after = 5 + rng.below(20);
    const std::chrono::microseconds into_the_call{rng.below(120)};
    std::thread ender{[&] {
      while (calls < after) std::this_thread::yield();
      std::this_thread::sleep_for(into_the_call);
      const Failure why{.code = Code::peer_lost, .what = "one was lost"};
      if (ProcessGroup* const group = to_revoke; one_alone && group != nullptr) group->revoke(why);
      else local.end_generation(why);
      over.count_down();
    }};
    Complaints complaints;
    local.run([&](std::uint32_t rank, Session& session) {
      auto group = ProcessGroup::join(session, patient);
      if (rank == 1 && group.ok()) to_revoke = &*group;
      Result<void> result = group.ok() ? Result<void>{} : Result<void>{group.failure()};
      while (result.ok()) {
        ++calls;
        std::vector<std::int64_t> data = given[rank];
        result = group->all_reduce(std::span{data});
        if (result.ok()) complaints(data == sums, "a call succeeded with wrong bits");
      }
      const Code code = result.failure().code;  // who hears of it later may see its peers go first
      complaints(code == Code::generation_over || code == Code::peer_lost, message(result.failure()));
      calls += after;
      over.arrive_and_wait();
    });
    ender.join();
    CHECK(complaints.all() == "");
  });
}

TEST_CASE("a revoked rank may write to its shared buffer at once, and no peer takes that for a result", "[process_group]") {
  for_all_seeds(10, [](Rng& rng) {
    LocalWorld local{3};
    std::vector<SharedBuffer> buffers;  // outlive the groups, as a program's memory does
    for (int rank = 0; rank < 3; ++rank) buffers.push_back(SharedBuffer::make(3_MiB).value());
    std::atomic<std::uint64_t> calls = 0;
    const std::uint64_t after = 1 + rng.below(20);
    std::thread ender{[&] {
      while (calls < after) std::this_thread::yield();
      local.end_generation({.code = Code::peer_lost, .what = "one was lost"});
    }};
    Complaints complaints;
    local.run([&](std::uint32_t rank, Session& session) {
      auto group = ProcessGroup::join(session, patient);
      const std::span<std::byte> all = buffers[rank].bytes(), mine = all.subspan(rank * all.size() / 3, all.size() / 3);
      Result<void> result = group.ok() ? group->share(buffers[rank]) : Result<void>{group.failure()};
      while (result.ok()) {
        ++calls;
        std::ranges::fill(mine, std::byte{1});
        result = group->all_gather(mine, all);
        if (!result.ok()) std::ranges::fill(all, std::byte{9});
        else complaints(std::ranges::all_of(all, [](std::byte b) { return b == std::byte{1}; }), "a result has what came after its call");
        if (result.ok()) result = group->barrier();  // nobody fills its part anew while another looks at all
      }
      calls += after;
    });
    ender.join();
    CHECK(complaints.all() == "");
  });
}

TEST_CASE("a deadline names the ranks that are missing", "[process_group]") {
  SECTION("in a call") {
    LocalWorld local{4};
    std::latch over{4};
    std::mutex mutex;
    std::map<std::uint32_t, std::string> said;
    local.run([&](std::uint32_t rank, Session& session) {
      auto group = std::move(ProcessGroup::join(session, {.connect = 30s})).value();
      group.set_deadline(3s);  // the three begin within less, however busy the machine is
      if (rank != 2) {
        const auto result = group.barrier();
        const std::lock_guard lock{mutex};
        said[rank] = result.ok() ? "ok" : message(result.failure());
      }
      over.arrive_and_wait();
    });
    // The first to run out of time says who was missing; the others may hear of its leaving instead.
    const bool named =
        std::ranges::any_of(said, [](const auto& entry) { return entry.second.find("missing: rank 2") != std::string::npos; });
    CAPTURE(said[0], said[1], said[3]);
    CHECK(named);
  }
  SECTION("when connecting") {
    LocalWorld local{3};
    Complaints complaints;
    local.run([&](std::uint32_t rank, Session& session) {
      if (rank == 2) {  // tells an address at which nobody ever answers, as a process would that was stopped
        const Fd silent = listen_on(resolve("127.0.0.1", 0).value().front()).value();
        const std::string place = std::to_string(local_address(silent.get()).port()) + " 127.0.0.1";
        (void)session.store().all_gather("elrun/comm/addresses", Rank{2}, WorldSize{3}, as_bytes(place),
                                         Deadline::after(local.clock().now(), 20s));
        (void)session.store().wait(std::vector<std::string>{"over 0", "over 1"}, Deadline::after(local.clock().now(), 60s));
        return;
      }
      const auto group = ProcessGroup::join(session, {.connect = 3s});  // the two who do answer may be slow
      (void)session.store().set("over " + std::to_string(rank), {}, Deadline::after(local.clock().now(), 60s));
      complaints(!group.ok() && group.failure().code == Code::deadline_passed && group.failure().what.find("rank 2") != std::string::npos,
                 group.ok() ? "joined" : message(group.failure()));
    });
    CHECK(complaints.all() == "");
  }
}

TEST_CASE("a peer that leaves fails the ranks that still need it, and no others", "[process_group]") {
  SECTION("one that owes data is named") {
    LocalWorld local{3};
    Complaints complaints;
    local.run([&](std::uint32_t rank, Session& session) {
      auto group = std::move(ProcessGroup::join(session, patient)).value();
      if (rank == 1) return;  // gone before its first call
      std::vector<float> data(100'000);
      const auto result = group.all_reduce(std::span{data});
      complaints(!result.ok() && result.failure().code == Code::peer_lost && result.failure().peer == Rank{1},
                 result.ok() ? "it succeeded" : message(result.failure()));
    });
    CHECK(complaints.all() == "");
  }
  SECTION("one that has delivered all may go while others still talk") {
    CHECK(run_group(3, [](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
            complaints.must(group.barrier(), "barrier");
            std::vector<std::byte> data(1'000'000);
            if (rank == 0) return;  // leaves in order
            for (int i = 0; i < 5; ++i)
              complaints.must(rank == 1 ? group.send(data, Rank{2}) : group.receive(data, Rank{1}), "a call between two that are there");
          }) == "");
  }
  SECTION("the last call of a job ends everywhere, whoever goes first") {
    for (int i = 0; i < 20; ++i) {
      CHECK(run_group(4, [](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
              std::vector<float> data(50'000, static_cast<float>(rank));
              complaints.must(group.all_reduce(std::span{data}), "the last call");
            }) == "");
    }
  }
}

namespace {

/// Three workers that reduce, as an operator would start them.
class ReducingWorkers {
 public:
  explicit ReducingWorkers(const std::string& transport, bool shared = false) {
    std::string port;
    {
      const Fd probe = listen_on(resolve("127.0.0.1", 0).value().front()).value();
      port = std::to_string(local_address(probe.get()).port());
    }
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "reducing_worker";
    for (const std::string rank : {"0", "1", "2"}) {
      workers_.push_back(std::make_unique<Program>(program, shared ? std::vector<std::string>{"shared"} : std::vector<std::string>{},
                                                   std::vector<std::string>{"RANK=" + rank, "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
                                                                            "MASTER_PORT=" + port, "ELRUN_TRANSPORT=" + transport}));
    }
    for (auto& worker : workers_) REQUIRE(worker->line(60s) == "reducing");
  }
  Program& operator[](std::size_t rank) { return *workers_[rank]; }

 private:
  std::vector<std::unique_ptr<Program>> workers_;
};

}  // namespace

TEST_CASE("a killed process is named by its peers at once", "[process_group]") {
  ReducingWorkers workers{GENERATE(as<std::string>{}, "tcp", "shm")};
  workers[1].kill(SIGKILL);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    const std::string said = workers[rank].line(60s).value_or("nothing");
    CHECK_THAT(said, Catch::Contains("peer_lost") || Catch::Contains("generation_over"));
    CHECK_THAT(said, Catch::Contains("rank 1"));
    CHECK(workers[rank].wait(60s) == 1);
  }
}

TEST_CASE("a process that is killed in the middle of a call leaves nobody stuck and nothing torn", "[process_group]") {
  for_all_seeds(8, [](Rng& rng) {
    const bool shared = rng.chance(0.5);
    ReducingWorkers workers{shared || rng.chance(0.6) ? "shm" : "tcp", shared};
    const std::size_t victim = rng.below(3);
    std::this_thread::sleep_for(std::chrono::microseconds{rng.below(20'000)});  // any moment will do, and each is another one
    workers[victim].kill(SIGKILL);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      CHECK_THAT(workers[rank].line(60s).value_or("nothing"), Catch::Contains("peer_lost") || Catch::Contains("generation_over"));
      CHECK(workers[rank].wait(60s) == 1);
    }
  });
}
