#include "lib/comm/shm/reduction.hpp"

#include <algorithm>
#include <cstring>

#include "lib/base/assert.hpp"
#include "lib/comm/copy.hpp"
#include "lib/comm/fold.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t results_posted = 8;  // chunks of one rank's results, about, where peers read them in place

}  // namespace

Result<void> Reduction::run(const Call& call, const CallLimit& limit) {
  ELRUN_ASSERT(lanes_.peers().size() + 1 == lanes_.me().world.value());
  call_ = call;
  const ReduceSchedule schedule{lanes_.me().world, call_.count, lanes_.slots().slot_size() / width()};
  for (PeerLane* const peer : lanes_.peers()) peer->begin_call(total());
  shared_in_ = lanes_.buffers().place_of({call_.in, total()});
  shared_out_ = call_.gather ? lanes_.buffers().place_of({call_.out, total()}) : std::nullopt;
  ELRUN_TRY(contribute(schedule, 0, limit));
  if (shared_in_ && (shared_out_ || !call_.gather) && call_.count >= lanes_.me().world.value()) {
    ELRUN_TRY_ASSIGN(const bool all, all_share(limit));
    if (all) return run_in_place(limit);
  }
  for (std::uint64_t round = 0; round < schedule.rounds() + (call_.gather ? 1 : 0); ++round) {
    ELRUN_TRY(contribute(schedule, round + 1, limit));
    ELRUN_TRY(fold_round(schedule, round, limit));
    if (call_.gather && round > 0) ELRUN_TRY(collect(schedule, round - 1, limit));
    ELRUN_TRY(lanes_.in_time(limit));
    if (lanes_.is_over()) return generation_is_over();
  }
  return lanes_.until_taken(limit);
}

/// To each peer, the block that it folds in this round.
Result<void> Reduction::contribute(const ReduceSchedule& schedule, std::uint64_t round, const CallLimit& limit) {
  for (PeerLane* const peer : lanes_.peers()) {
    const Range theirs = schedule.folded(peer->rank(), round);
    if (theirs.size() == 0) continue;
    if (shared_in_) {
      ELRUN_TRY(lanes_.wait_for_room(std::span{&peer, 1}, limit));
      lanes_.post_shared(shared_in_->after(theirs.begin * width()), theirs.size() * width(), total(), std::span{&peer, 1});
      continue;
    }
    ELRUN_TRY_ASSIGN(RegionSlot* const slot, lanes_.wait_for_slot(std::span{&peer, 1}, limit));
    std::memcpy(slot->begin, call_.in + theirs.begin * width(), theirs.size() * width());
    lanes_.post(*slot, theirs.size() * width(), total(), std::span{&peer, 1});
  }
  return {};
}

/// This rank's own block, and its result to all.
Result<void> Reduction::fold_round(const ReduceSchedule& schedule, std::uint64_t round, const CallLimit& limit) {
  const Range fold = schedule.folded(lanes_.me().rank, round);
  if (fold.size() == 0) return {};
  const std::size_t size = fold.size() * width();
  for (PeerLane* const peer : lanes_.peers()) {
    ELRUN_TRY_ASSIGN(const SendPiece theirs, lanes_.expect(*peer, size, limit));
    inputs_[peer->rank().value()] = theirs.data();
  }
  inputs_[lanes_.me().rank.value()] = call_.in + fold.begin * width();
  RegionSlot* result = nullptr;
  std::byte* const mine = call_.out + (call_.gather ? fold.begin : fold.begin - part().begin) * width();
  if (shared_out_) {
    ELRUN_TRY(lanes_.wait_for_room(lanes_.peers(), limit));
    fold_ranks(inputs_, mine, fold.size(), call_.type, call_.op);
  } else if (call_.gather) {
    ELRUN_TRY_ASSIGN(result, lanes_.wait_for_slot(lanes_.peers(), limit));
    fold_ranks(inputs_, result->begin, fold.size(), call_.type, call_.op);
    std::memcpy(mine, result->begin, size);
  } else {
    fold_ranks(inputs_, mine, fold.size(), call_.type, call_.op);
  }
  for (PeerLane* const peer : lanes_.peers()) {
    ELRUN_TRY(peer->still_valid());
    peer->took();
  }
  // Peers that saw this group's connections end may have reused the slots that were folded. A result of that is posted to nobody.
  if (lanes_.is_over()) return generation_is_over();
  if (shared_out_) lanes_.post_shared(shared_out_->after(fold.begin * width()), size, total(), lanes_.peers());
  else if (call_.gather) lanes_.post(*result, size, total(), lanes_.peers());
  return {};
}

/// The peers' results of this round.
Result<void> Reduction::collect(const ReduceSchedule& schedule, std::uint64_t round, const CallLimit& limit) {
  for (PeerLane* const peer : lanes_.peers()) {
    const Range given = schedule.folded(peer->rank(), round);
    if (given.size() == 0) continue;
    ELRUN_TRY_ASSIGN(const SendPiece theirs, lanes_.expect(*peer, given.size() * width(), limit));
    std::memcpy(call_.out + given.begin * width(), theirs.data(), theirs.size());
    ELRUN_TRY(peer->still_valid());
    peer->took();
  }
  return {};
}

// --- where every rank's elements lie in shared buffers ---

/// The first chunk of each rank tells everybody whether its elements can be read in place, so all ranks come to the same answer.
Result<bool> Reduction::all_share(const CallLimit& limit) {
  bool all = true;
  for (PeerLane* const peer : lanes_.peers()) {
    ELRUN_TRY(lanes_.wait_for_chunk(*peer, limit));
    ELRUN_TRY(peer->head(lanes_.label()));
    all = all && peer->head_is_shared();
  }
  return all;
}

/// What a peer has just written is expensive to read while it is in that peer's cache, so reading begins when folding is over.
Result<void> Reduction::run_in_place(const CallLimit& limit) {
  ELRUN_TRY(fold_in_place(limit));
  for (PeerLane* const peer : lanes_.peers()) peer->took();
  if (shared_out_) ELRUN_TRY(read_results(limit));
  return lanes_.until_taken(limit);
}

Result<void> Reduction::fold_in_place(const CallLimit& limit) {
  const Range mine = part();
  const std::size_t size = mine.size() * width();
  std::byte* const out = call_.out + (shared_out_ ? mine.begin * width() : 0);
  const std::size_t step = step_most / 4 / width() * width(), piece = std::max<std::size_t>(size / results_posted, step_most);
  for (std::size_t at = 0, posted = 0; at < size;) {
    const std::size_t bytes = std::min(step, size - at);
    for (PeerLane* const peer : lanes_.peers()) {
      ELRUN_TRY_ASSIGN(const std::byte* const theirs, peer->head_of(size, lanes_.label()));
      inputs_[peer->rank().value()] = theirs + at;
    }
    inputs_[lanes_.me().rank.value()] = call_.in + mine.begin * width() + at;
    fold_ranks(inputs_, out + at, bytes / width(), call_.type, call_.op);
    for (const PeerLane* const peer : lanes_.peers()) ELRUN_TRY(peer->still_valid());
    if (lanes_.is_over()) return generation_is_over();
    ELRUN_TRY(lanes_.in_time(limit));
    at += bytes;
    if (!shared_out_ || (at - posted < piece && at < size)) continue;
    ELRUN_TRY(lanes_.wait_for_room(lanes_.peers(), limit));
    lanes_.post_shared(shared_out_->after(mine.begin * width() + posted), at - posted, total(), lanes_.peers());
    posted = at;
  }
  return {};
}

Result<void> Reduction::read_results(const CallLimit& limit) {
  const bool streaming = total() >= 8 * streamed_least;
  for (PeerLane* const peer : lanes_.peers()) {
    const Range theirs = part_of(peer->rank(), lanes_.me().world, call_.count);
    ReceivePiece& result = results_[peer->rank().value()];
    result = {call_.out + theirs.begin * width(), theirs.size() * width()};
    peer->pending = Cursor<ReceivePiece>{std::span{&result, 1}};
  }
  const auto readable = [](const PeerLane* peer) { return !peer->pending.done() && peer->is_available(); };
  const auto all_read = [&] { return std::ranges::all_of(lanes_.peers(), [](const PeerLane* peer) { return peer->pending.done(); }); };
  while (!all_read()) {
    for (PeerLane* const peer : lanes_.peers())
      if (readable(peer)) ELRUN_TRY(lanes_.copy_step(*peer, streaming));
    if (lanes_.is_over()) return generation_is_over();
    ELRUN_TRY(lanes_.in_time(limit));
    ELRUN_TRY(lanes_.wait(
        limit, [&] { return std::ranges::any_of(lanes_.peers(), readable) || all_read(); },
        [](const PeerLane& peer) { return !peer.pending.done(); }));
  }
  return {};
}

}  // namespace elrun::inline v0
