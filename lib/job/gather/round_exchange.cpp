#include "lib/job/gather/round_exchange.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

bool hands_off(const Need& need) { return need.hand_off != Need::nothing; }

}  // namespace

RoundExchange::RoundExchange(std::uint32_t world, std::uint32_t rank) : rank_{rank}, needs_(world) {
  for (Delivery* lists : {&tell_, &move_}) lists->sends.resize(world), lists->receives.resize(world);
  for (std::uint32_t r = 0; r < world; ++r) {
    if (r == rank_) continue;
    tell_.sends[r] = {std::as_bytes(std::span{&needs_[rank_], 1})};
    tell_.receives[r] = {std::as_writable_bytes(std::span{&needs_[r], 1})};
  }
}

Failure RoundExchange::unexpected_leaf(std::uint32_t rank) const {
  Failure f{Code::protocol, Remedy::abort_group,
            fmt::format("rank {} hands off a leaf of unit {}, which nobody expects of it {}", rank, needs_[rank].hand_off,
                        to_string(needs_[rank_].phase))};
  f.peer = Rank{rank};
  return f;
}

std::optional<Heard> RoundExchange::run(JobWorld& world, const Need& said, const RoundMoves& moves) {
  needs_[rank_] = said;
  if (!world.exchange(tell_.sends, tell_.receives, Call::round).ok()) return std::nullopt;
  auto wrong = check(needs_, moves.state.layout().units.size());
  for (std::uint32_t r = 0; r < needs_.size() && wrong.ok(); ++r)
    if (hands_off(needs_[r]) && moves.stream == nullptr) wrong = unexpected_leaf(r);
  if (wrong.ok() && moves.stream != nullptr) put_off(needs_, moves.stream->handed_by());
  if (wrong.ok() && std::ranges::any_of(needs_, [](const Need& need) { return hands_off(need) || need.gather != Need::nothing; }))
    if (!move(world, moves, wrong)) return std::nullopt;
  const bool ends_slot =
      said.phase.what == Phase::What::slot && std::ranges::all_of(needs_, [](const Need& need) { return need.last != 0; });
  if (wrong.ok() && ends_slot && moves.stream != nullptr && !moves.stream->next())
    wrong = Failure{Code::protocol, Remedy::abort_group,
                    fmt::format("a rank that was {} ended it without handing off all units", to_string(said.phase))};
  if (!wrong.ok()) {
    world.end(wrong.failure());
    return std::nullopt;
  }
  return Heard{needs_, rank_};
}

/// The second exchange of a round, and what follows from it, in the order of the rounds' memory. False: it failed, and the world is over.
bool RoundExchange::move(JobWorld& world, const RoundMoves& moves, Result<void>& wrong) {
  const Need& mine = needs_[rank_];
  const ShardMap& shards = moves.shards;
  moves.memory.wait_for(moves.marks.state);
  if (mine.gather != Need::nothing) moves.memory.wait_for(moves.marks.weights[static_cast<std::size_t>(mine.gather)]);
  if (hands_off(mine)) moves.memory.wait_for(moves.marks.leaves[static_cast<std::size_t>(mine.hand_off)]);
  moves.state.begin_round();
  for (std::uint32_t r = 0; r < needs_.size(); ++r) {
    move_.sends[r].clear(), move_.receives[r].clear();
    if (r == rank_) continue;
    const Need& theirs = needs_[r];
    if (const auto given = shards.gives(rank_, r); given && theirs.gather != Need::nothing)
      move_.sends[r].push_back(moves.state.weights_to_give(static_cast<std::uint32_t>(theirs.gather), *given, moves.memory.get()));
    if (const auto given = shards.gives(r, rank_); given && mine.gather != Need::nothing)
      move_.receives[r].push_back(moves.state.weights_to_take(static_cast<std::uint32_t>(mine.gather), *given));
    if (hands_off(mine)) move_.sends[r].push_back(moves.stream->part_for(static_cast<std::uint32_t>(mine.hand_off), r));
    if (hands_off(theirs)) move_.receives[r].push_back(moves.stream->arriving(static_cast<std::uint32_t>(theirs.hand_off), r));
  }
  const bool moved = world.exchange_arrays(move_.sends, move_.receives, Call::round, moves.memory.get().stream()).ok();
  for (std::uint32_t r = 0; r < needs_.size() && moved && wrong.ok(); ++r)
    if (hands_off(needs_[r]) && !moves.stream->arrived(static_cast<std::uint32_t>(needs_[r].hand_off), r)) wrong = unexpected_leaf(r);
  moves.memory.show_to_job();  // also what a failed exchange left
  return moved;
}

}  // namespace elrun::inline v0
