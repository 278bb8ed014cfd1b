// What collectives compute and move, over all transports.

#include <elrun/process_group.hpp>

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/convert.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process_groups.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

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
