#include <elrun/process_group.hpp>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <future>
#include <latch>
#include <map>
#include <mutex>
#include <thread>

#include "kernels/convert.hpp"
#include "lib/comm/connect/handshake.hpp"
#include "lib/link/socket.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/local_world.hpp"
#include "tests/support/program.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

/// Catch2 counts from one thread: ranks leave their complaints here.
class Complaints {
 public:
  void operator()(bool rule, const std::string& text) {
    if (rule) return;
    const std::lock_guard lock{mutex_};
    texts_ += text + "\n";
  }
  void must(const Result<void>& result, const std::string& what) {
    (*this)(result.ok(), what + ": " + (result.ok() ? "" : message(result.failure())));
  }
  [[nodiscard]] std::string all() {
    const std::lock_guard lock{mutex_};
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::string texts_;
};

constexpr GroupOptions patient{.connect = 30s, .collective = 60s};

/// How the ranks of a world reach each other: two that both leave it open do through memory, all others over TCP.
using Transports = std::vector<Transport>;
Transports any_transports(Rng& rng, std::uint32_t world) {
  Transports transports(world, rng.chance(0.5) ? Transport::automatic : Transport::tcp);
  if (rng.chance(0.5)) std::ranges::generate(transports, [&] { return rng.chance(0.3) ? Transport::tcp : Transport::automatic; });
  return transports;
}

/// Every rank joins, and runs its part on a thread of its own.
template <class Body>
std::string run_group(std::uint32_t world, Body body, const Transports& transports = {}) {
  LocalWorld local{world};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    GroupOptions options = patient;
    if (!transports.empty()) options.transport = transports[rank];
    auto group = ProcessGroup::join(session, options);
    if (!group.ok()) return complaints(false, message(group.failure()));
    body(rank, *group, complaints);
  });
  return complaints.all();
}

/// What element i of rank r holds: small integers, so that sums are exact in every type.
template <class T>
T element(std::uint64_t seed, std::uint32_t rank, std::size_t i) {
  const auto value =
      static_cast<int>(Philox4x32::block({static_cast<std::uint32_t>(i), rank, static_cast<std::uint32_t>(seed), 0}, {1, 2})[0] % 11);
  if constexpr (std::is_same_v<T, bf16>) return to_bf16(static_cast<float>(value));
  else return static_cast<T>(value);
}
template <class T>
double number(T x) {
  if constexpr (std::is_same_v<T, bf16>) return static_cast<double>(to_float(x));
  else return static_cast<double>(x);
}
template <class T>
double reduced(std::uint64_t seed, std::uint32_t world, std::size_t i, ReduceOp op) {
  double value = number(element<T>(seed, 0, i));
  for (std::uint32_t r = 1; r < world; ++r) {
    const double next = number(element<T>(seed, r, i));
    value = op == ReduceOp::min ? std::min(value, next) : op == ReduceOp::max ? std::max(value, next) : value + next;
  }
  return op == ReduceOp::avg ? value / world : value;
}

/// Where a rank keeps what it gives and gets: in a buffer that its peers read in place, or in memory of its own.
class Room {
 public:
  Room(ProcessGroup& group, Rng rng, Bytes size, Complaints& complaints) : rng_{rng} {
    if (!rng_.chance(0.6)) return;
    buffer_.emplace(SharedBuffer::make(size).value());
    complaints.must(group.share(*buffer_), "share");
    if (rng_.chance(0.2)) complaints.must(group.share(*buffer_), "share again");
  }
  /// At any place that suits a T, most of them in the buffer.
  template <class T>
  std::span<T> take(std::size_t count) {
    const std::size_t begin = (used_ + rng_.below(100) * sizeof(T) + alignof(T) - 1) / alignof(T) * alignof(T), bytes = count * sizeof(T);
    if (!buffer_ || bytes > buffer_->bytes().size() || begin > buffer_->bytes().size() - bytes || rng_.chance(0.2)) {
      own_.push_back(std::make_unique<std::byte[]>(bytes + sizeof(T)));
      return {reinterpret_cast<T*>(own_.back().get()), count};
    }
    used_ = begin + bytes;
    return {reinterpret_cast<T*>(buffer_->bytes().data() + begin), count};
  }

 private:
  Rng rng_;
  std::optional<SharedBuffer> buffer_;
  std::size_t used_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> own_;
};

template <class T>
void check_reductions(std::uint64_t seed, std::uint32_t rank, std::uint32_t world, std::size_t count, ReduceOp op, ProcessGroup& group,
                      Complaints& complaints, Room& room) {
  const std::string what = "type " + std::to_string(static_cast<int>(DTypeOf<T>::value)) + " op " + std::to_string(static_cast<int>(op)) +
                           " count " + std::to_string(count);
  const auto close = [&](T got, double want) {
    return std::abs(number(got) - want) <= 0.005 * std::abs(want) + (std::is_integral_v<T> ? 0 : 1e-6);
  };
  const std::span<T> data = room.take<T>(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = element<T>(seed, rank, i);
  complaints.must(group.all_reduce(data, op), "all_reduce " + what);
  for (std::size_t i = 0; i < count; ++i) {
    if (!close(data[i], reduced<T>(seed, world, i, op)))
      return complaints(false, "all_reduce " + what + " is wrong at " + std::to_string(i));
  }
  const std::span<T> in = room.take<T>(count * world), out = room.take<T>(count);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = element<T>(seed + 1, rank, i);
  complaints.must(group.reduce_scatter(std::span<const T>{in}, out, op), "reduce_scatter " + what);
  for (std::size_t i = 0; i < count; ++i) {
    if (!close(out[i], reduced<T>(seed + 1, world, rank * count + i, op)))
      return complaints(false, "reduce_scatter " + what + " is wrong at " + std::to_string(i));
  }
}

std::byte byte_at(std::uint64_t seed, std::uint32_t from, std::uint32_t to, std::size_t i) {
  return static_cast<std::byte>(seed * 7 + from * 31 + to * 101 + i * 3 + (i >> 8));
}

}  // namespace

TEST_CASE("every collective does what its obvious version does", "[process_group]") {
  for_all_seeds(20, [](Rng& rng) {
    const std::uint32_t world = 1 + static_cast<std::uint32_t>(rng.below(5));
    const std::uint64_t seed = rng.next();
    // Some calls are small, some pass the bounds at which the schedule changes (one round, blocks, scattered broadcast).
    const std::size_t count = rng.chance(0.3) ? rng.below(8) : rng.chance(0.5) ? rng.below(5000) : 300'000 + rng.below(500'000);
    const auto op = static_cast<ReduceOp>(rng.below(4));
    const auto type = static_cast<DType>(rng.below(8));
    const std::uint32_t root = static_cast<std::uint32_t>(rng.below(world));
    const Transports transports = any_transports(rng, world);
    CHECK(run_group(
              world,
              [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
                Room room{group, Rng{seed + rank}, Bytes{4096 + 30 * count * world}, complaints};
                switch (type) {
                  case DType::f32: check_reductions<float>(seed, rank, world, count, op, group, complaints, room); break;
                  case DType::bf16: check_reductions<bf16>(seed, rank, world, count, op, group, complaints, room); break;
                  case DType::f64: check_reductions<double>(seed, rank, world, count, op, group, complaints, room); break;
                  case DType::i32:
                    if (op != ReduceOp::avg) check_reductions<std::int32_t>(seed, rank, world, count, op, group, complaints, room);
                    break;
                  case DType::i64:
                    if (op != ReduceOp::avg) check_reductions<std::int64_t>(seed, rank, world, count, op, group, complaints, room);
                    break;
                  case DType::u8:
                    if (op != ReduceOp::avg) check_reductions<std::uint8_t>(seed, rank, world, count, op, group, complaints, room);
                    break;
                  case DType::u32:
                    if (op != ReduceOp::avg) check_reductions<std::uint32_t>(seed, rank, world, count, op, group, complaints, room);
                    break;
                  case DType::u64:
                    if (op != ReduceOp::avg) check_reductions<std::uint64_t>(seed, rank, world, count, op, group, complaints, room);
                    break;
                }
                const auto mine = room.take<std::byte>(count), all = room.take<std::byte>(count * world);
                for (std::size_t i = 0; i < count; ++i) mine[i] = byte_at(seed, rank, 0, i);
                complaints.must(group.all_gather(mine, all), "all_gather");
                for (std::uint32_t r = 0; r < world; ++r)
                  for (std::size_t i = 0; i < count; ++i)
                    if (all[r * count + i] != byte_at(seed, r, 0, i)) return complaints(false, "all_gather is wrong");

                const auto one = room.take<std::byte>(2 * count + 1);
                for (std::size_t i = 0; i < one.size(); ++i) one[i] = byte_at(seed, rank, 1, i);
                complaints.must(group.broadcast(one, Rank{root}), "broadcast");
                for (std::size_t i = 0; i < one.size(); ++i)
                  if (one[i] != byte_at(seed, root, 1, i)) return complaints(false, "broadcast is wrong");

                const auto out = room.take<std::byte>(count * world), in = room.take<std::byte>(count * world);
                for (std::uint32_t r = 0; r < world; ++r)
                  for (std::size_t i = 0; i < count; ++i) out[r * count + i] = byte_at(seed, rank, r, i);
                complaints.must(group.all_to_all(out, in), "all_to_all");
                for (std::uint32_t r = 0; r < world; ++r)
                  for (std::size_t i = 0; i < count; ++i)
                    if (in[r * count + i] != byte_at(seed, r, rank, i)) return complaints(false, "all_to_all is wrong");

                // Around the ring: even ranks send first, odd ones receive first.
                if (world > 1) {
                  const Rank next{(rank + 1) % world}, before{(rank + world - 1) % world};
                  const auto got = room.take<std::byte>(count);
                  const auto send = [&] { complaints.must(group.send(mine, next), "send"); };
                  const auto receive = [&] { complaints.must(group.receive(got, before), "receive"); };
                  if (rank % 2 == 0) send(), receive();
                  else receive(), send();
                  for (std::size_t i = 0; i < count; ++i)
                    if (got[i] != byte_at(seed, before.value(), 0, i)) return complaints(false, "receive is wrong");
                }
                complaints.must(group.barrier(), "barrier");
              },
              transports) == "");
  });
}

TEST_CASE("all ranks get the same bits, those of the sum in rank order", "[process_group]") {
  constexpr std::uint32_t world = 3;
  for (const std::size_t count : {std::size_t{100}, std::size_t{700'000}}) {
    std::vector<std::vector<float>> results(world);
    const auto value = [](std::uint32_t rank, std::size_t i) {
      return unit_float(Philox4x32::block({static_cast<std::uint32_t>(i), rank, 0, 0}, {9, 9})[0]) * (rank == 1 ? 1e6f : -1.0f);
    };
    CHECK(run_group(world, [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
            results[rank].resize(count);
            for (std::size_t i = 0; i < count; ++i) results[rank][i] = value(rank, i);
            complaints.must(group.all_reduce(std::span{results[rank]}), "all_reduce");
          }) == "");
    std::vector<float> wanted(count);
    for (std::size_t i = 0; i < count; ++i) wanted[i] = (value(0, i) + value(1, i)) + value(2, i);
    for (const auto& result : results) CHECK(std::memcmp(result.data(), wanted.data(), count * sizeof(float)) == 0);
  }
}

TEST_CASE("an exchange of lists moves every piece to its place, whatever the cuts", "[process_group]") {
  for_all_seeds(20, [](Rng& rng) {
    const std::uint32_t world = 1 + static_cast<std::uint32_t>(rng.below(4));
    const std::uint64_t seed = rng.next();
    std::vector<std::vector<std::size_t>> sizes(world, std::vector<std::size_t>(world));
    for (auto& row : sizes)
      for (auto& size : row) size = rng.chance(0.3) ? 0 : rng.below(400'000);
    const Transports transports = any_transports(rng, world);
    CHECK(run_group(
              world,
              [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
                Rng cuts{seed + rank};
                std::vector<std::span<std::byte>> out(world), in(world);
                Room room{group, Rng{seed * 3 + rank}, 3_MiB, complaints};
                std::vector<SendList> sends(world);
                std::vector<ReceiveList> receives(world);
                for (std::uint32_t r = 0; r < world; ++r) {
                  out[r] = room.take<std::byte>(sizes[rank][r]);
                  in[r] = room.take<std::byte>(sizes[r][rank]);
                  for (std::size_t i = 0; i < out[r].size(); ++i) out[r][i] = byte_at(seed, rank, r, i);
                  const std::size_t piece = 1 + cuts.below(cuts.chance(0.5) ? 1000 : 300'000);
                  for (std::size_t at = 0; at < out[r].size(); at += piece)
                    sends[r].push_back(out[r].subspan(at, std::min(piece, out[r].size() - at)));
                  const std::size_t other = 1 + cuts.below(cuts.chance(0.5) ? 1000 : 300'000);
                  for (std::size_t at = 0; at < in[r].size(); at += other)
                    receives[r].push_back(in[r].subspan(at, std::min(other, in[r].size() - at)));
                }
                for (int again = 0; again < 2; ++again) {
                  complaints.must(group.exchange(sends, receives), "exchange");
                  for (std::uint32_t r = 0; r < world; ++r)
                    for (std::size_t i = 0; i < in[r].size(); ++i)
                      if (in[r][i] != byte_at(seed, r, rank, i)) return complaints(false, "exchange is wrong");
                  for (auto& part : in) std::ranges::fill(part, std::byte{0});
                }
              },
              transports) == "");
  });
}

TEST_CASE("a shared buffer serves the groups of one generation after the other, and lies where it lay", "[process_group]") {
  std::vector<SharedBuffer> buffers;
  for (int rank = 0; rank < 3; ++rank) buffers.push_back(SharedBuffer::make(4_MiB).value());
  const std::byte* const place = buffers[0].bytes().data();
  for (std::uint32_t world = 3; world > 1; --world) {  // one less each time
    CHECK(run_group(world, [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
            complaints.must(group.share(buffers[rank]), "share");
            const std::span<std::uint32_t> data = buffers[rank].as<std::uint32_t>();
            const auto reduces = [&](ProcessGroup& among, std::uint32_t members) {
              for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint32_t>(i) * world;
              complaints.must(among.all_reduce(data), "all_reduce");
              for (std::size_t i = 0; i < data.size(); ++i)
                if (data[i] != static_cast<std::uint32_t>(i) * world * members) return complaints(false, "all_reduce is wrong");
            };
            reduces(group, world);
            auto part = group.split(0);
            if (!part.ok()) return complaints(false, message(part.failure()));
            reduces(**part, world);
            complaints.must((*part)->share(buffers[rank]), "share with a part");
            reduces(**part, world);
          }) == "");
  }
  CHECK(buffers[0].bytes().data() == place);
  CHECK(SharedBuffer::make(0_B).failure().code == Code::invalid_argument);
}

TEST_CASE("a large gather is complete, beside what it gathers from and in place", "[process_group]") {
  constexpr std::uint32_t world = 3;
  constexpr std::size_t count = 3'000'003;  // in all: more than a cache keeps for one core
  std::vector<std::byte> wanted(world * count);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = byte_at(5, static_cast<std::uint32_t>(i / count), 0, i % count);
  for (const Transport transport : {Transport::shm, Transport::tcp}) {
    CHECK(run_group(
              world,
              [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
                const auto place = [&](std::vector<std::byte>& of) { return std::span{of}.subspan(rank * count, count); };
                std::vector<std::byte> all(wanted.size()), in_place(wanted.size());
                complaints.must(group.all_gather(place(wanted), all), "all_gather");
                const auto right = [&](const std::vector<std::byte>& of) {
                  return std::memcmp(of.data(), wanted.data(), wanted.size()) == 0;
                };  // quick, under a sanitizer too
                complaints(right(all), "all_gather is wrong");
                std::ranges::copy(place(wanted), place(in_place).begin());
                complaints.must(group.all_gather(place(in_place), in_place), "all_gather in place");
                complaints(right(in_place), "all_gather in place is wrong");
              },
              Transports(world, transport)) == "");
  }
}

TEST_CASE("a call between two does not disturb the others", "[process_group]") {
  CHECK(run_group(3, [](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
          std::vector<std::byte> data(100'000, static_cast<std::byte>(rank));
          for (int i = 0; i < 3 && rank == 0; ++i) complaints.must(group.send(data, Rank{1}), "send");
          for (int i = 0; i < 3 && rank == 1; ++i) complaints.must(group.receive(data, Rank{0}), "receive");
          complaints.must(group.barrier(), "barrier");
          if (rank == 1) complaints(data[99'999] == std::byte{0}, "received something else");
        }) == "");
}

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
          complaints.must(group.barrier(), "barrier");
        }) == "");
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

TEST_CASE("ranks whose calls are for something else are told for what, though lengths agree", "[process_group]") {
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

TEST_CASE("revocation in the middle of large calls leaves nobody behind", "[process_group]") {
  for_all_seeds(10, [](Rng& rng) {
    LocalWorld local{3};
    std::atomic<std::uint64_t> calls = 0;
    const std::uint64_t after = 1 + rng.below(20);
    std::thread ender{[&] {
      while (calls < after) std::this_thread::yield();
      local.end_generation({.code = Code::peer_lost, .what = "one was lost"});
    }};
    Complaints complaints;
    local.run([&](std::uint32_t, Session& session) {
      auto group = ProcessGroup::join(session, patient);
      std::vector<float> data(200'000);
      while (group.ok()) {
        ++calls;
        if (const auto result = group->all_reduce(std::span{data}); !result.ok()) {
          const Code code = result.failure().code;  // who hears of it later may see its peers go first
          return complaints(code == Code::generation_over || code == Code::peer_lost, message(result.failure()));
        }
      }
      calls += after;
    });
    ender.join();
    CHECK(complaints.all() == "");
  });
}

TEST_CASE("who is revoked may write at once what it lent, and nobody takes that for a result", "[process_group]") {
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
      group.set_deadline(300ms);
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
        (void)session.store().get("never", Deadline::after(local.clock().now(), 1s));
        return;
      }
      const auto group = ProcessGroup::join(session, {.connect = 500ms});
      complaints(!group.ok() && group.failure().code == Code::deadline_passed && group.failure().what.find("rank 2") != std::string::npos,
                 group.ok() ? "joined" : message(group.failure()));
    });
    CHECK(complaints.all() == "");
  }
}

TEST_CASE("nobody joins without the generation's key, or for another generation", "[process_group]") {
  LocalWorld local{2};
  SECTION("another key") { local.place(1).key.fill(std::byte{8}); }
  SECTION("another lineage") { local.place(1).membership.generation.lineage.bits[1] ^= 1; }
  SECTION("an earlier generation") { local.place(1).membership.generation.number = 0; }
  Complaints complaints;
  std::latch both{2};
  local.run([&](std::uint32_t rank, Session& session) {
    both.arrive_and_wait();  // the deadline begins when both are there
    const auto group = ProcessGroup::join(session, {.connect = 2s});
    if (group.ok()) return complaints(false, "joined");
    const Failure& failure = group.failure();
    complaints(failure.peer == Rank{1 - rank}, "does not name the peer: " + message(failure));
    complaints(failure.code == Code::refused || failure.code == Code::deadline_passed, message(failure));
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("a proof that was captured on one connection opens no other", "[process_group]") {
  LocalWorld local{2};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    if (rank == 0) {
      const auto group = ProcessGroup::join(session, patient);
      (void)session.store().set("joined", {}, Deadline::after(local.clock().now(), 60s));
      return complaints(group.ok(), group.ok() ? "" : message(group.failure()));
    }
    // Rank 1 is played here: it has the key, and says the same introduction each time.
    const auto places = session.store().all_gather("elrun/comm/addresses", Rank{1}, WorldSize{2}, as_bytes("1 127.0.0.1"),
                                                   Deadline::after(local.clock().now(), 60s));
    if (!places.ok()) return complaints(false, message(places.failure()));
    const auto port = static_cast<std::uint16_t>(std::atoi(std::string{as_text((*places)[0])}.c_str()));
    const Introduction mine{session.place().membership.generation, WorldSize{2}, Rank{1}, Rank{0}, {}};
    const auto readable = [](const Fd& fd) {
      pollfd ready{fd.get(), POLLIN, 0};
      return ::poll(&ready, 1, 30'000) == 1;
    };
    const auto introduced = [&](Nonce& listeners) {  // and what the listener answered
      Fd fd = connect_begin(resolve("127.0.0.1", port).value().front()).value();
      pollfd ready{fd.get(), POLLOUT, 0};
      complaints(::poll(&ready, 1, 30'000) == 1, "not connected");
      const auto words = encode(mine);
      complaints(::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size()), "not introduced");
      std::array<std::byte, answer_size> answer{};
      complaints(readable(fd) && ::recv(fd.get(), answer.data(), answer.size(), 0) == static_cast<ssize_t>(answer.size()), "no answer");
      std::copy_n(answer.begin(), listeners.size(), listeners.begin());
      return fd;
    };
    Nonce first{}, second{}, third{};
    const Fd captured = introduced(first);
    const Sha256 proof = proof_of(Role::dialer, session.place().key, mine, first);
    const Fd replayed = introduced(second);
    (void)::send(replayed.get(), proof.data(), proof.size(), MSG_NOSIGNAL);
    char byte = 0;
    complaints(readable(replayed) && ::recv(replayed.get(), &byte, 1, 0) <= 0, "the replayed proof was not refused");
    // The same with a proof of its own gets in.
    const Fd honest = introduced(third);
    complaints(first != second && second != third, "a nonce came twice");
    const Sha256 own = proof_of(Role::dialer, session.place().key, mine, third);
    (void)::send(honest.get(), own.data(), own.size(), MSG_NOSIGNAL);
    complaints(session.store().get("joined", Deadline::after(local.clock().now(), 60s)).ok(), "rank 0 did not join");
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("strangers at the door cost nothing", "[process_group]") {
  LocalWorld local{2};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    if (rank == 0) {
      auto group = ProcessGroup::join(session, patient);
      if (!group.ok()) return complaints(false, message(group.failure()));
      return complaints.must(group->barrier(), "barrier");
    }
    // Rank 1 learns where rank 0 listens, sends strangers first, and comes late.
    class Spy final : public Session {
     public:
      explicit Spy(Session& real) : real_{real}, store_{*this} {}
      const Place& place() const override { return real_.place(); }
      Store& store() override { return store_; }
      void on_generation_over(OnOver call) override { real_.on_generation_over(std::move(call)); }
      void progress(StepNumber) override {}
      Result<void> finished(Deadline) override { return {}; }
      std::vector<Fd> strangers;

     private:
      struct SpyStore final : Store {
        explicit SpyStore(Spy& owner) : spy{owner} {}
        Store& real() { return spy.real_.store(); }
        Result<void> set(std::string_view k, ByteSpan v, Deadline d) override { return real().set(k, v, d); }
        Result<Value> get(std::string_view k, Deadline d) override { return real().get(k, d); }
        Result<std::int64_t> add(std::string_view k, std::int64_t n, Deadline d) override { return real().add(k, n, d); }
        Result<Value> compare_set(std::string_view k, ByteSpan e, ByteSpan v, Deadline d) override {
          return real().compare_set(k, e, v, d);
        }
        Result<void> wait(std::span<const std::string> k, Deadline d) override { return real().wait(k, d); }
        Result<bool> remove(std::string_view k, Deadline d) override { return real().remove(k, d); }
        Result<std::optional<Value>> watch(std::string_view key, std::optional<ByteSpan> known, Deadline d) override {
          return real().watch(key, known, d);
        }
        Result<std::uint64_t> num_keys(std::string_view prefix, Deadline d) override { return real().num_keys(prefix, d); }
        Result<void> barrier(std::string_view n, WorldSize c, Deadline d) override { return real().barrier(n, c, d); }
        Result<std::vector<Value>> all_gather(std::string_view n, Rank r, WorldSize c, ByteSpan v, Deadline d) override {
          auto places = real().all_gather(n, r, c, v, d);
          if (!places.ok()) return places;
          const std::uint16_t port = static_cast<std::uint16_t>(std::atoi(std::string{as_text((*places)[0])}.c_str()));
          const SocketAddress door = resolve("127.0.0.1", port).value().front();
          for (int i = 0; i < 20; ++i) {
            Fd stranger = connect_begin(door).value();
            const std::string garbage(static_cast<std::size_t>(i) * 20, 'g');  // none, some, more than an introduction
            (void)::send(stranger.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
            if (i % 3 != 0) spy.strangers.push_back(std::move(stranger));  // a third hangs up
          }
          // And at its Unix socket, where it has one.
          const std::string told{as_text((*places)[0])};
          if (const auto name = told.rfind("elrun-"); name != std::string::npos) {
            for (int i = 0; i < 20; ++i) {
              Fd stranger{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
              sockaddr_un address{};
              address.sun_family = AF_UNIX;
              told.copy(address.sun_path + 1, sizeof address.sun_path - 1, name);
              const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + told.size() - name);
              if (::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) std::abort();
              const std::string garbage(static_cast<std::size_t>(i) * 20, 'g');
              (void)::send(stranger.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
              if (i % 3 != 0) spy.strangers.push_back(std::move(stranger));
            }
          }
          return places;
        }
        Spy& spy;
      };
      Session& real_;
      SpyStore store_;
    };
    Spy spy{session};
    auto group = ProcessGroup::join(spy, patient);
    if (!group.ok()) return complaints(false, message(group.failure()));
    complaints.must(group->barrier(), "barrier");
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("a peer that leaves fails who still needs it, and nobody else", "[process_group]") {
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
  explicit ReducingWorkers(const std::string& transport, bool lend = false) {
    std::string port;
    {
      const Fd probe = listen_on(resolve("127.0.0.1", 0).value().front()).value();
      port = std::to_string(local_address(probe.get()).port());
    }
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "reducing_worker";
    for (const std::string rank : {"0", "1", "2"}) {
      workers_.push_back(std::make_unique<Program>(program, lend ? std::vector<std::string>{"lend"} : std::vector<std::string>{},
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
    const bool lend = rng.chance(0.5);
    ReducingWorkers workers{lend || rng.chance(0.6) ? "shm" : "tcp", lend};
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

TEST_CASE("the bits of a reduction do not depend on the transport", "[process_group]") {
  for_all_seeds(15, [](Rng& rng) {
    const std::uint32_t world = 2 + static_cast<std::uint32_t>(rng.below(4));
    const auto seed = static_cast<std::uint32_t>(rng.next());
    const auto type = static_cast<DType>(rng.below(8));
    const bool floating = type == DType::f32 || type == DType::f64 || type == DType::bf16;
    const auto op = static_cast<ReduceOp>(rng.below(floating ? 4 : 3));
    const std::size_t count = rng.chance(0.3) ? rng.below(100) : rng.below(400'000);
    const Transports mixed = any_transports(rng, world);
    // What every rank has at the end, of an all_reduce and a reduce_scatter, by transport.
    const auto results = [&](const Transports& transports) {
      std::vector<std::vector<std::byte>> all(2 * world);
      CHECK(run_group(
                world,
                [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
                  const auto fill = [&]<class T>(std::vector<T>& values) {
                    for (std::size_t i = 0; i < values.size(); ++i) {
                      const auto bits = Philox4x32::block({static_cast<std::uint32_t>(i), rank, seed, 0}, {3, 4});
                      // Of all magnitudes, so that the order of sums shows.
                      const double value = (static_cast<double>(bits[0]) - 2e9) * static_cast<double>(1u << (bits[1] % 20));
                      if constexpr (std::is_same_v<T, bf16>) values[i] = to_bf16(static_cast<float>(value));
                      else if constexpr (std::is_integral_v<T>) values[i] = static_cast<T>(bits[2]);
                      else values[i] = static_cast<T>(value);
                    }
                  };
                  const auto both = [&]<class T>(T) {
                    std::vector<T> data(count), in(count * world), out(count);
                    fill(data);
                    fill(in);
                    complaints.must(group.all_reduce(std::span{data}, op), "all_reduce");
                    complaints.must(group.reduce_scatter(std::span<const T>{in}, std::span{out}, op), "reduce_scatter");
                    all[rank].assign(std::as_bytes(std::span{data}).begin(), std::as_bytes(std::span{data}).end());
                    all[world + rank].assign(std::as_bytes(std::span{out}).begin(), std::as_bytes(std::span{out}).end());
                  };
                  switch (type) {
                    case DType::f32: return both(float{});
                    case DType::bf16: return both(bf16{});
                    case DType::f64: return both(double{});
                    case DType::i32: return both(std::int32_t{});
                    case DType::i64: return both(std::int64_t{});
                    case DType::u8: return both(std::uint8_t{});
                    case DType::u32: return both(std::uint32_t{});
                    case DType::u64: return both(std::uint64_t{});
                  }
                },
                transports) == "");
      return all;
    };
    const auto by_memory = results(Transports(world, Transport::shm));
    CHECK(by_memory == results(Transports(world, Transport::tcp)));
    CHECK(by_memory == results(mixed));
  });
}

TEST_CASE("a rank that must share memory and cannot is told which one it does not reach", "[process_group]") {
  const std::string complaints = run_group(
      2, [](std::uint32_t rank, ProcessGroup&, Complaints& complain) { complain(rank != 0, "joined"); }, {Transport::shm, Transport::tcp});
  CHECK_THAT(complaints, Catch::Contains("rank 1 is not to be reached through shared memory") && Catch::Contains("ELRUN_TRANSPORT") &&
                             !Catch::Contains("joined"));
}

TEST_CASE("what a slow peer has not yet taken of earlier calls disturbs no later one", "[process_group]") {
  // Many small sends fill its lane; the reduction that follows posts there too.
  CHECK(run_group(6, [](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
          const std::vector<std::byte> small(10, static_cast<std::byte>(rank));
          std::vector<std::byte> got(10);
          for (int i = 0; i < 40; ++i) {
            if (rank == 0) complaints.must(group.send(small, Rank{1}), "send");
            if (rank == 1) complaints.must(group.receive(got, Rank{0}), "receive");
          }
          std::vector<std::uint32_t> data(200'000, rank);
          complaints.must(group.all_reduce(std::span{data}), "all_reduce");
          complaints(std::ranges::all_of(data, [](std::uint32_t x) { return x == 15; }), "the sum is wrong");
        }) == "");
}

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

TEST_CASE("a split group has the ranks of one color, in the order of their keys", "[process_group]") {
  for_all_seeds(8, [](Rng& rng) {
    const std::uint32_t world = 1 + static_cast<std::uint32_t>(rng.below(5));
    const Transports transports = any_transports(rng, world);
    struct Word {
      std::optional<std::uint32_t> color;
      std::int32_t key = 0;
    };
    std::vector<Word> words(world);
    for (Word& word : words) {
      if (!rng.chance(0.2)) word.color = static_cast<std::uint32_t>(rng.below(2));
      word.key = static_cast<std::int32_t>(rng.below(3)) - 1;
    }
    CHECK(run_group(
              world,
              [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
                auto part = group.split(words[rank].color, words[rank].key);
                if (!part.ok()) return complaints(false, message(part.failure()));
                complaints(part->has_value() == words[rank].color.has_value(), "a group for no color, or none for one");
                if (part->has_value()) {
                  std::vector<std::pair<std::int32_t, std::uint32_t>> wanted;
                  for (std::uint32_t r = 0; r < world; ++r)
                    if (words[r].color == words[rank].color) wanted.push_back({words[r].key, r});
                  std::ranges::sort(wanted);
                  std::vector<std::uint32_t> members(wanted.size());
                  complaints((*part)->membership().world.value() == wanted.size(), "another size");
                  complaints.must((*part)->all_gather(std::as_bytes(std::span{&rank, 1}), std::as_writable_bytes(std::span{members})),
                                  "all_gather in the part");
                  for (std::size_t i = 0; i < wanted.size(); ++i) complaints(members[i] == wanted[i].second, "another order");
                  // Again, of the part: all of one color, backwards.
                  auto back = (*part)->split(7, -static_cast<std::int32_t>((*part)->membership().rank.value()));
                  if (!back.ok()) return complaints(false, message(back.failure()));
                  std::uint32_t first = rank;
                  complaints.must((**back).broadcast(std::as_writable_bytes(std::span{&first, 1}), Rank{0}), "broadcast");
                  complaints(first == wanted.back().second, "not backwards");
                }
                complaints.must(group.barrier(), "the whole group's barrier");
                complaints(group.split(1).ok(), "a second split");
              },
              transports) == "");
  });
}
