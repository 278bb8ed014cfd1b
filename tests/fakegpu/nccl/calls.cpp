#include "tests/fakegpu/nccl/calls.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace fakenccl {
namespace {

int ranks_of(const Moves& moves) { return static_cast<int>(moves.out.size()); }
std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

void add_text(Moves& moves, int rank, bool sends, bool receives, const std::string& text) {
  if (sends) moves.sends[at(rank)] += text + "; ";
  if (receives) moves.expects[at(rank)] += text + "; ";
}

std::string named(Moves& moves, const char* call, std::size_t bytes) {
  const std::string text = std::string{call} + " of " + std::to_string(bytes) + " bytes";
  moves.name += (moves.name.empty() ? "" : ", ") + text;
  return text;
}

float widened(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t narrowed(float value) {  // to nearest, ties to even
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffu) > 0x7f80'0000u) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  if (op == ncclMin) return b < a ? b : a;
  if (op == ncclMax) return a < b ? b : a;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  else return a + b;
}

/// `first`: the rank that begins. The order depends on who reduces, or on where an element is, as in a ring: nobody may rely on rank order.
template <class T>
void fold(Arrived in, std::byte* out, std::size_t begin, std::size_t end, std::size_t first, ncclRedOp_t op, bool bf16) {
  const std::size_t ranks = in.size();
  for (std::size_t i = begin; i < end; ++i) {
    const auto element = [&](std::size_t k) -> T {
      const std::byte* from = in[(first + k) % ranks];
      if constexpr (std::is_same_v<T, float>) {
        std::uint16_t bits;
        if (bf16) return std::memcpy(&bits, from + 2 * i, 2), widened(bits);
      }
      T value;
      std::memcpy(&value, from + sizeof(T) * i, sizeof(T));
      return value;
    };
    T value = element(0);
    for (std::size_t k = 1; k < ranks; ++k) {
      value = combine(value, element(k), op);
      if constexpr (std::is_same_v<T, float>)
        if (bf16) value = widened(narrowed(value));  // partial results travel as bf16
    }
    if constexpr (std::is_floating_point_v<T>)
      if (op == ncclAvg) value /= static_cast<T>(ranks);
    if constexpr (std::is_same_v<T, float>) {
      if (bf16) {
        const std::uint16_t bits = narrowed(value);
        std::memcpy(out + 2 * i, &bits, 2);
        continue;
      }
    }
    std::memcpy(out + sizeof(T) * i, &value, sizeof(T));
  }
}

using Folding = void (*)(Arrived, std::byte*, std::size_t, std::size_t, std::size_t, ncclRedOp_t, bool);
Folding folding_of(ncclDataType_t type, ncclRedOp_t op) {
  if (op != ncclSum && op != ncclMin && op != ncclMax && op != ncclAvg) return nullptr;
  switch (type) {
    case ncclUint8: return fold<std::uint8_t>;
    case ncclInt32: return fold<std::int32_t>;
    case ncclUint32: return fold<std::uint32_t>;
    case ncclInt64: return fold<std::int64_t>;
    case ncclUint64: return fold<std::uint64_t>;
    case ncclFloat32:
    case ncclBfloat16: return fold<float>;
    case ncclFloat64: return fold<double>;
    default: return nullptr;
  }
}

/// What rank `r` gives this rank, unread until the fold.
void expect_for_fold(Moves& moves, Moves::Fold& fold, int from, std::size_t bytes, const std::string& text) {
  fold.pieces.push_back(moves.in[at(from)].size());
  moves.in[at(from)].push_back({nullptr, bytes});
  add_text(moves, from, false, true, text);
}

std::string reduction(ncclDataType_t type, ncclRedOp_t op) {
  return " (type " + std::to_string(type) + ", operation " + std::to_string(op) + ")";
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 1;
  }
}

void add_all_gather(Moves& moves, int, const void* in, void* out, std::size_t bytes) {
  const std::string text = named(moves, "ncclAllGather", bytes);
  const int ranks = ranks_of(moves);
  for (int r = 0; r < ranks; ++r) {
    moves.out[at(r)].push_back({static_cast<const std::byte*>(in), bytes});
    moves.in[at(r)].push_back({static_cast<std::byte*>(out) + at(r) * bytes, bytes});
    add_text(moves, r, true, true, text);
  }
  moves.reads.push_back({in, bytes});
  moves.writes.push_back({out, bytes * at(ranks)});
}

void add_broadcast(Moves& moves, int me, const void* in, void* out, std::size_t bytes, int root) {
  const std::string text = named(moves, "ncclBroadcast", bytes) + " from rank " + std::to_string(root);
  for (int r = 0; r < ranks_of(moves) && me == root; ++r) {
    moves.out[at(r)].push_back({static_cast<const std::byte*>(in), bytes});
    add_text(moves, r, true, false, text);
  }
  moves.in[at(root)].push_back({static_cast<std::byte*>(out), bytes});
  add_text(moves, root, false, true, text);
  if (me == root) moves.reads.push_back({in, bytes});
  moves.writes.push_back({out, bytes});
}

void add_all_to_all(Moves& moves, int, const void* in, void* out, std::size_t bytes) {
  const std::string text = named(moves, "ncclAlltoAll", bytes);
  const int ranks = ranks_of(moves);
  for (int r = 0; r < ranks; ++r) {
    moves.out[at(r)].push_back({static_cast<const std::byte*>(in) + at(r) * bytes, bytes});
    moves.in[at(r)].push_back({static_cast<std::byte*>(out) + at(r) * bytes, bytes});
    add_text(moves, r, true, true, text);
  }
  moves.reads.push_back({in, bytes * at(ranks)});
  moves.writes.push_back({out, bytes * at(ranks)});
}

void add_send(Moves& moves, const void* from, std::size_t bytes, int to) {
  (void)named(moves, "ncclSend", bytes);
  moves.to.push_back(to);
  moves.out[at(to)].push_back({static_cast<const std::byte*>(from), bytes});
  add_text(moves, to, true, false, "a message of " + std::to_string(bytes) + " bytes");
  moves.reads.push_back({from, bytes});
}

void add_receive(Moves& moves, void* to, std::size_t bytes, int from) {
  (void)named(moves, "ncclRecv", bytes);
  moves.from.push_back(from);
  moves.in[at(from)].push_back({static_cast<std::byte*>(to), bytes});
  add_text(moves, from, false, true, "a message of " + std::to_string(bytes) + " bytes");
  moves.writes.push_back({to, bytes});
}

bool add_all_reduce(Moves& moves, int, const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
  const Folding folding = folding_of(type, op);
  if (folding == nullptr) return false;
  const std::size_t bytes = count * size_of(type);
  const int ranks = ranks_of(moves);
  const std::string text = named(moves, "ncclAllReduce", bytes) + reduction(type, op);
  Moves::Fold fold;
  for (int r = 0; r < ranks; ++r) {
    moves.out[at(r)].push_back({static_cast<const std::byte*>(in), bytes});
    add_text(moves, r, true, false, text);
    expect_for_fold(moves, fold, r, bytes, text);
  }
  fold.run = [=](Arrived arrived) {  // part r of the elements begins behind rank r, on all ranks
    for (std::size_t r = 0; r < at(ranks); ++r)
      folding(arrived, static_cast<std::byte*>(out), count * r / at(ranks), count * (r + 1) / at(ranks), r + 1, op, type == ncclBfloat16);
  };
  moves.folds.push_back(std::move(fold));
  moves.reads.push_back({in, bytes});
  moves.writes.push_back({out, bytes});
  return true;
}

bool add_reduce_scatter(Moves& moves, int me, const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
  const Folding folding = folding_of(type, op);
  if (folding == nullptr) return false;
  const std::size_t bytes = count * size_of(type);
  const int ranks = ranks_of(moves);
  const std::string text = named(moves, "ncclReduceScatter", bytes) + reduction(type, op);
  Moves::Fold fold;
  for (int r = 0; r < ranks; ++r) {
    moves.out[at(r)].push_back({static_cast<const std::byte*>(in) + at(r) * bytes, bytes});
    add_text(moves, r, true, false, text);
    expect_for_fold(moves, fold, r, bytes, text);
  }
  fold.run = [=](Arrived arrived) { folding(arrived, static_cast<std::byte*>(out), 0, count, at(me) + 1, op, type == ncclBfloat16); };
  moves.folds.push_back(std::move(fold));
  moves.reads.push_back({in, bytes * at(ranks)});
  moves.writes.push_back({out, bytes});
  return true;
}

}  // namespace fakenccl
