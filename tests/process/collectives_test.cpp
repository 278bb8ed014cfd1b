#include "lib/comm/collectives.hpp"

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "lib/comm/host_collectives.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/local_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

const CallOptions patient{.limit = 60s};

/// Every rank joins and runs its part on a thread of its own. Catch2 counts from one thread: failures come back as text.
template <class Body>
std::vector<std::string> run_collectives(std::uint32_t world, Transport transport, Body body) {
  LocalWorld local{world};
  std::vector<std::string> problems(world);
  local.run([&](std::uint32_t rank, Session& session) {
    auto group = join_host_collectives(session, {.transport = transport, .connect = 30s});
    if (!group.ok()) problems[rank] = message(group.failure());
    else problems[rank] = body(rank, **group);
  });
  return problems;
}

std::string text(const Result<void>& result) { return result.ok() ? "" : message(result.failure()); }

}  // namespace

TEST_CASE("the interface's calls do on each transport what their names say", "[collectives]") {
  const Transport transport = GENERATE(Transport::shm, Transport::tcp);
  const std::uint32_t world = GENERATE(1u, 3u);
  const auto problems = run_collectives(world, transport, [&](std::uint32_t rank, Collectives& group) -> std::string {
    if (group.membership().world.value() != world || group.membership().rank.value() != rank) return "another membership";
    const auto bytes = [](auto& values) { return std::as_writable_bytes(std::span{values}); };
    std::vector<std::uint32_t> sum{rank + 1, 10};
    if (const auto done = group.all_reduce(bytes(sum).data(), 2, DType::u32, ReduceOp::sum, patient); !done.ok()) return text(done);
    if (sum != std::vector<std::uint32_t>{world * (world + 1) / 2, 10 * world}) return "all_reduce is wrong";
    std::vector<std::uint32_t> parts(world, rank), mine(1), all(world);
    if (const auto done = group.reduce_scatter(bytes(parts).data(), world, bytes(mine).data(), 1, DType::u32, ReduceOp::max, patient);
        !done.ok())
      return text(done);
    if (mine[0] != world - 1) return "reduce_scatter is wrong";
    if (const auto done = group.all_gather(std::as_bytes(std::span{&rank, 1}), bytes(all), patient); !done.ok()) return text(done);
    for (std::uint32_t r = 0; r < world; ++r)
      if (all[r] != r) return "all_gather is wrong";
    std::vector<std::uint32_t> root{rank};
    if (const auto done = group.broadcast(bytes(root), Rank{world - 1}, patient); !done.ok()) return text(done);
    if (root[0] != world - 1) return "broadcast is wrong";
    std::vector<std::uint32_t> swapped(world);
    for (std::uint32_t r = 0; r < world; ++r) parts[r] = 10 * rank + r;
    if (const auto done = group.all_to_all(bytes(parts), bytes(swapped), patient); !done.ok()) return text(done);
    for (std::uint32_t r = 0; r < world; ++r)
      if (swapped[r] != 10 * r + rank) return "all_to_all is wrong";
    return "";
  });
  CHECK(problems == std::vector<std::string>(world));
}

TEST_CASE("a call that misses a peer names it", "[collectives]") {
  const auto problems = run_collectives(2, Transport::automatic, [](std::uint32_t rank, Collectives& group) -> std::string {
    std::vector<std::byte> in(1), out(2);
    if (const auto first = group.all_gather(in, out, patient); !first.ok()) return text(first);
    if (rank == 1) return "";  // leaves: rank 0 misses it
    const auto missed = group.all_gather(in, out, {.limit = 20s});
    return missed.ok() ? "it succeeded alone" : missed.failure().peer == Rank{1} ? "" : text(missed);
  });
  CHECK(problems == std::vector<std::string>(2));
}

TEST_CASE("a call of many transfers has one limit for all of them", "[collectives]") {
  const bool reduces = GENERATE(false, true);
  constexpr Duration limit = 8s, late = 7s;  // what is late is in the first transfer; in the second rank 2 is missing
  constexpr std::size_t block = 256 << 10;   // bytes; a reduction of eight times as much per rank has several rounds
  // The one that is late has a second until the others run out of time. Where the system does not run it for so long, there was no second transfer, and it is tried again.
  std::atomic<bool> too_late = true;
  for (int tries = 0; tries < 4 && too_late; ++tries) {
    too_late = false;
    std::promise<void> over;
    auto all_over = over.get_future().share();
    const auto problems = run_collectives(3, Transport::tcp, [&](std::uint32_t rank, Collectives& group) -> std::string {
      std::vector<std::byte> data(3 * 8 * block);
      const auto call = [&] {
        return reduces ? group.all_reduce(data.data(), data.size(), DType::u8, ReduceOp::sum, {.limit = limit})
                       : group.broadcast(data, Rank{0}, {.limit = limit});
      };
      const SteadyClock clock;
      const Instant before = clock.now();
      if (rank == 2 && reduces) {  // takes part in the first round alone
        std::this_thread::sleep_for(late);
        std::vector<SendList> sends(3);
        std::vector<ReceiveList> receives(3);
        for (const std::uint32_t peer : {0, 1})
          sends[peer].push_back(std::span{data}.first(2 * block)),
              receives[peer].push_back(std::span{data}.subspan((2 + 2 * peer) * block, 2 * block));
        CallOptions as_others = patient;
        as_others.label.kind = CallKind::all_reduce(DType::u8, ReduceOp::sum);
        const auto first = group.exchange(sends, receives, as_others);
        if (!first.ok() && clock.now() - before < limit) return text(first);
        too_late = !first.ok();
      }
      if (rank == 2) return all_over.wait(), "";
      if (rank == 0 && !reduces) {
        std::this_thread::sleep_for(late);
        too_late = clock.now() - before >= limit;
      }
      const Instant began = clock.now();
      const auto ended = call();
      if (rank == 0) return "";
      const Duration took = clock.now() - began;
      over.set_value();
      if (ended.ok()) return "it succeeded without rank 2";
      const bool own = ended.failure().code == Code::deadline_passed;  // or rank 0 ran out of time a moment before
      if (own && ended.failure().what.find("within 8000 ms") == std::string::npos) return text(ended);
      // A limit for each transfer would take limit + late at least; a busy machine has `late` to spare here.
      return took < limit + late ? "" : "it took " + std::to_string(took / 1ms) + " ms";
    });
    CHECK(problems == std::vector<std::string>(3));
  }
  CHECK_FALSE(too_late);
}
