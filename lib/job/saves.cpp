#include "lib/job/saves.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

constexpr int damaged_max = 8;  // checkpoints that are tried, newest first, before the damage is called general

}  // namespace

Saves::Saves(Files& files, const Clock& clock, const Log& log, JobWorld& world, CheckpointOptions options, Saver saver,
             std::vector<Fragment> saved, std::vector<Fragment> loaded)
    : log_{log},
      world_{world},
      options_{std::move(options)},
      checkpointer_{files, clock, log, options_.directory, std::move(saver)},
      saved_{std::move(saved)},
      loaded_{std::move(loaded)} {}

/// What the leader's call gave, success or failure, on all ranks.
template <class T>
Result<T> Saves::leaders(const std::function<Result<T>()>& call, Result<T> (*decode)(ByteSpan)) {
  ByteWriter w;
  if (world_.leads()) {
    const Result<T> mine = call();
    w.put_bytes(encode_status(mine.ok() ? Result<void>{} : Result<void>{mine.failure()}));
    w.put_bytes(mine.ok() ? encode(*mine) : ByteVector{});
  }
  ELRUN_TRY_ASSIGN(const ByteVector bytes, world_.from_leader(w.bytes()));
  ByteReader r{bytes};
  const ByteSpan status = r.get_bytes(bytes.size()), value = r.get_bytes(bytes.size());
  ELRUN_TRY(r.finish("the leader's answer"));
  ELRUN_TRY(decode_status(status));
  return decode(value);
}

Result<std::optional<std::vector<Aux>>> Saves::restore() {
  ELRUN_TRY(world_.agree(checkpointer_.open_root()));
  Failure last;
  for (int attempt = 0; attempt < damaged_max; ++attempt) {
    ELRUN_TRY_ASSIGN(const Start start, leaders<Start>([&] { return checkpointer_.start(); }, decode_start));
    claimed_ = true;
    if (!start.choice.has_value()) return std::optional<std::vector<Aux>>{};
    auto loaded = checkpointer_.load(start, loaded_);
    const auto everywhere = world_.agree(loaded.ok() ? Result<void>{} : Result<void>{loaded.failure()});
    if (everywhere.ok()) return std::optional{std::move(loaded).value()};
    last = everywhere.failure();
    // `io`: a bad sector is damage too; the leader finds out whether it is the checkpoint or one rank's way to it.
    const bool damaged = last.code == Code::corrupt || last.code == Code::not_found || last.code == Code::io;
    if (world_.over() || !damaged) return last;
    if (world_.leads())
      log_.warning(fmt::format("checkpoint {} cannot be used, the one before it is tried: {}", to_string(*start.choice),
                               message(last)));
    ELRUN_TRY(world_.agree(world_.leads() ? checkpointer_.reject(start, last) : Result<void>{}));
  }
  return last;
}

Result<void> Saves::save(std::uint64_t step, std::span<const Aux> aux,
                         const std::function<Result<void>()>& still_owner) {
  if (!claimed_) {
    ELRUN_TRY(world_.agree(checkpointer_.open_root()));
    ELRUN_TRY(leaders<Start>([&] { return checkpointer_.start(/*has_state=*/true); }, decode_start));
    claimed_ = true;
  }
  std::uint64_t aux_bytes = 0;
  for (const Aux& a : aux) aux_bytes += a.bytes.size();
  ELRUN_TRY_ASSIGN(const SaveTicket ticket,
                   leaders<SaveTicket>([&] { return checkpointer_.begin_save(step, aux_bytes); }, decode_save_ticket));
  const PartVote mine = checkpointer_.write_part(ticket, saved_, aux);
  auto gathered = world_.all_gather(encode(mine));
  if (!gathered.ok()) {  // the generation is over: whoever comes next sweeps what this save left
    return std::move(gathered).failure();
  }
  Result<void> committed;
  if (world_.leads()) {
    std::vector<PartVote> votes;
    for (std::uint32_t r = 0; r < world_.size() && committed.ok(); ++r) {
      auto vote = decode_part_vote((*gathered)[r]);
      if (!vote.ok())
        committed = std::move(vote).failure();
      else if (vote->refusal.has_value())
        committed = *vote->refusal;
      else
        votes.push_back(std::move(vote).value());
      if (!committed.ok()) committed = [&, f = committed.failure()]() mutable { return f.rank = Rank{r}, f; }();
    }
    if (committed.ok()) committed = checkpointer_.commit(ticket, votes, still_owner);
    if (committed.ok()) {
      if (const auto kept = checkpointer_.retain(options_.keep); !kept.ok())
        log_.warning("old checkpoints could not be removed: " + message(kept.failure()));
    } else {
      checkpointer_.abandon(ticket);
    }
  }
  return world_.agree(committed);
}

}  // namespace elrun::inline v0
