#pragma once
/// \file What each call of NCCL moves: pieces of memory to and from each rank, and what is made of what came. Nothing here knows of streams.

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace fakenccl {

struct PieceOut {
  const std::byte* from;
  std::size_t bytes;
};
struct PieceIn {
  std::byte* to;  ///< Null: `fold` reads it where it lies.
  std::size_t bytes;
};
struct Range {
  const void* begin;
  std::size_t bytes;
};

/// What came from one rank for a fold: where its piece lies.
using Arrived = std::span<const std::byte* const>;

/// One call, or all calls of one group: they run together.
struct Moves {
  explicit Moves(int ranks) : out(static_cast<std::size_t>(ranks)), in(out.size()), sends(out.size()), expects(out.size()) {}
  std::vector<std::vector<PieceOut>> out;  ///< By rank.
  std::vector<std::vector<PieceIn>> in;
  /// In words, what goes to each rank, and what has to come from it: the two ends of a message agree.
  std::vector<std::string> sends, expects;
  /// Run once all has come. `pieces`: of each rank, the number of its first piece that belongs to the fold.
  struct Fold {
    std::vector<std::size_t> pieces;
    std::function<void(Arrived)> run;
  };
  std::vector<Fold> folds;
  std::vector<Range> reads, writes;
  /// Peers of send, and of receive: the two of each make a connection first.
  std::vector<int> to, from;
  std::string name;  ///< Of the whole, for reports.
};

[[nodiscard]] std::size_t size_of(ncclDataType_t type);

// Each adds its part to `moves`, which is that of rank `me`.
void add_all_gather(Moves& moves, int me, const void* in, void* out, std::size_t bytes);
void add_broadcast(Moves& moves, int me, const void* in, void* out, std::size_t bytes, int root);
void add_all_to_all(Moves& moves, int me, const void* in, void* out, std::size_t bytes);
void add_send(Moves& moves, const void* from, std::size_t bytes, int to);
void add_receive(Moves& moves, void* to, std::size_t bytes, int from);
/// False: a type or an operation that the fake does not fold.
[[nodiscard]] bool add_all_reduce(Moves& moves, int me, const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op);
[[nodiscard]] bool add_reduce_scatter(Moves& moves, int me, const void* in, void* out, std::size_t count, ncclDataType_t type,
                                      ncclRedOp_t op);

}  // namespace fakenccl
