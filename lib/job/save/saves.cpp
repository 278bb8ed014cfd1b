#include "lib/job/save/saves.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/commit/newest.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "lib/job/save/world_loads.hpp"

namespace elrun::inline v0 {
namespace {

constexpr int damaged_max = 8;              // checkpoints that are tried, newest first, before the damage is called general
constexpr std::uint32_t failures_max = 64;  // that an agent remembers
constexpr Duration store_wait = 1s;         // agents and the storage remember, too: a coordinator that is away is not waited for

Result<std::string> decode_text(ByteSpan bytes) { return std::string{as_text(bytes)}; }
ByteSpan encode(const std::string& text) { return as_bytes(text); }

}  // namespace

Saves::Saves(Files& files, const Clock& clock, const Log& log, Session& session, JobWorld& world, CheckpointOptions options, Saver saver,
             HostFragments saved, HostFragments loaded, unsigned threads)
    : clock_{clock},
      log_{log},
      session_{session},
      world_{world},
      options_{std::move(options)},
      saver_{saver},
      plan_{saver.plan.hash},
      checkpointer_{files, clock, log, options_.directory, std::move(saver), threads > 0 ? storage_operations_at_once : 1},
      saved_{std::move(saved)},
      loaded_{std::move(loaded)},
      threads_{threads} {}

/// What the leader's call gave, success or failure, on all ranks.
template <class T>
Result<T> Saves::leaders(const std::function<Result<T>()>& call, Result<T> (*decode)(ByteSpan)) {
  ByteWriter w;
  if (world_.leads()) {
    const Result<T> mine = call();
    w.put_bytes(encode_status(mine.ok() ? Result<void>{} : Result<void>{world_.named(mine.failure())}));
    w.put_bytes(mine.ok() ? encode(*mine) : ByteVector{});
  }
  ELRUN_TRY_ASSIGN(const ByteVector bytes, world_.from_leader(w.bytes()));
  ByteReader r{bytes};
  const ByteSpan status = r.get_bytes(bytes.size()), value = r.get_bytes(bytes.size());
  ELRUN_TRY(r.finish("the leader's answer"));
  ELRUN_TRY(decode_status(status));
  return decode(value);
}

namespace {

constexpr std::uint8_t is_answer = 0, is_question = 1;  // the first byte of what the leader says while it starts

}  // namespace

Result<std::vector<ShardFindings>> Saves::ask_for_shards(const ShardQuestion& check) {
  ELRUN_TRY_ASSIGN(const auto parts, world_.all_gather(encode(checkpointer_.check_shards(check))));
  std::vector<ShardFindings> findings;
  for (std::uint32_t r = 0; r < parts.size(); ++r) {
    ELRUN_TRY_ASSIGN(ShardFindings found, decode_shard_findings(parts[r]));
    found.rank = r;
    findings.push_back(std::move(found));
  }
  return findings;
}

Result<Start> Saves::start_together(const KnownElsewhere& heard) {
  const auto say = [&](std::uint8_t kind, ByteSpan bytes) {
    ByteWriter w;
    w.put(kind);
    w.put_raw(bytes);
    return world_.from_leader(w.bytes());
  };
  if (world_.leads()) {
    const auto ask = [&](const ShardQuestion& check) -> Result<std::vector<ShardFindings>> {
      ELRUN_TRY(say(is_question, encode(check)));
      return ask_for_shards(check);
    };
    const Result<Start> mine = checkpointer_.start(heard, world_.size() > 1 ? AskRanks{ask} : AskRanks{});
    if (world_.over()) return world_.why_over();
    ByteWriter w;
    w.put_bytes(encode_status(mine.ok() ? Result<void>{} : Result<void>{world_.named(mine.failure())}));
    w.put_bytes(mine.ok() ? encode(*mine) : ByteVector{});
    ELRUN_TRY(say(is_answer, w.bytes()));
    return mine;
  }
  for (;;) {
    ELRUN_TRY_ASSIGN(const ByteVector bytes, world_.from_leader({}));
    ByteReader r{bytes};
    if (const auto kind = r.get<std::uint8_t>(); kind == is_question) {
      ELRUN_TRY_ASSIGN(const ShardQuestion check, decode_shard_question(r.get_raw(r.left())));
      ELRUN_TRY(ask_for_shards(check));
      continue;
    }
    const ByteSpan status = r.get_bytes(bytes.size()), value = r.get_bytes(bytes.size());
    ELRUN_TRY(r.finish("the leader's answer"));
    ELRUN_TRY(decode_status(status));
    return decode_start(value);
  }
}

/// Another directory, or another plan, is another job's.
void Saves::hear(KnownElsewhere& heard, std::string_view text, const std::string& who) {
  if (text.empty()) return;
  const auto record = decode_acknowledgement(as_bytes(text), who);
  if (!record.ok())
    return log_.warning(fmt::format("what {} remembers of the newest checkpoint cannot be read: {}", who, message(record.failure())));
  if (record->plan != plan_) return;
  if (!is_under(*record, options_.directory)) {
    if (!std::exchange(has_told_of_another_, true))
      log_.info(fmt::format("the checkpoint of step {} under {}, which {} remembers, is taken for another job's: this one's are under {}",
                            record->id.step, record->directory, who, options_.directory));
    return;
  }
  Witness said = witness(*record, who, true);
  for (const Witness& w : heard.witnesses)
    if (w.id == said.id && w.root == said.root) return;  // one is enough for people
  heard.witnesses.push_back(std::move(said));
}

/// What failed after a checkpoint of another root is another job's.
void Saves::hear(std::vector<FailedAfter>& heard, const FailureAfter& failure, const std::string& node) const {
  const Path path{failure.checkpoint};
  if (const auto id = parse_checkpoint_id(path.filename().string()); id && checkpointer_.path_of(*id) == path)
    heard.push_back({*id, failure.generation, failure.step, failure.how, node});
}

void Saves::tell_store(const std::string& acknowledgement) const {
  (void)tell_newest(session_.store(), acknowledgement, Deadline::after(clock_.now(), store_wait));
}

namespace {

void put(ByteWriter& w, const RootSight& sight) {
  w.put_text(sight.root), w.put(sight.fence), w.put_text(sight.newest ? to_string(*sight.newest) : "");
}

RootSight sight_from(ByteReader& r) {
  RootSight sight{.root = r.get_text(64), .fence = r.get<FenceNumber>()};
  const std::string name = r.get_text(64);
  sight.newest = parse_checkpoint_id(name);
  if (!name.empty() && !sight.newest) r.mark_broken();
  return sight;
}

}  // namespace

Result<KnownElsewhere> Saves::look_around() {
  if (world_.leads()) {  // what it sees it compares with what the others saw, so it looks after them
    ELRUN_TRY(world_.agree(checkpointer_.open_root()));
    return ask_around({});
  }
  const auto sees = checkpointer_.sight();
  ELRUN_TRY(world_.agree(sees.ok() ? Result<void>{} : Result<void>{sees.failure()}));
  return ask_around(*sees);
}

Result<KnownElsewhere> Saves::ask_around(const RootSight& sees) {
  const Session::Remembered mine = session_.remembered();
  ByteWriter w;
  w.put(mine.decided);
  w.put_text(mine.checkpoint);
  w.put_text(session_.place().node.value());
  const auto told = static_cast<std::uint32_t>(std::min<std::size_t>(mine.failures.size(), failures_max));
  w.put(told);
  for (std::uint32_t i = 0; i < told; ++i) {
    const FailureAfter& f = mine.failures[i];
    w.put_text(f.checkpoint), w.put(f.generation), w.put(f.step), w.put_text(f.how);
  }
  put(w, sees);
  ELRUN_TRY_ASSIGN(const auto parts, world_.all_gather(w.bytes()));
  KnownElsewhere heard;
  heard.sights.looks = ++looks_;
  std::vector<FailedAfter> failures;
  for (std::uint32_t rank = 0; rank < parts.size(); ++rank) {
    ByteReader r{parts[rank]};
    heard.decided = std::max(heard.decided, r.get<std::uint64_t>());
    const std::string text = r.get_text(acknowledgement_bytes_max.value()), node = r.get_text(4096);
    const auto count = r.get<std::uint32_t>();
    for (std::uint32_t i = 0; i < count && !r.broken(); ++i) {
      FailureAfter f;
      f.checkpoint = r.get_text(4096), f.generation = r.get<std::uint64_t>(), f.step = r.get<std::uint64_t>(), f.how = r.get_text(512);
      if (world_.leads() && !r.broken()) hear(failures, f, node);
    }
    const RootSight seen = sight_from(r);
    ELRUN_TRY(r.finish("what a rank's agent remembers, and the rank sees"));
    if (rank == 0) heard.sights.leaders_node = node;
    else heard.sights.ranks.push_back({rank, node, seen});
    if (world_.leads()) hear(heard, text, fmt::format("the agent of node {}", node));
  }
  heard.suspects = suspects(std::move(failures));
  if (const auto newest = world_.leads() ? newest_told(session_.store(), Deadline::after(clock_.now(), store_wait)) : std::string{};
      newest.ok())
    hear(heard, *newest, "the store of the job");
  return heard;
}

namespace {

void put(ByteWriter& w, const std::optional<NewestCheckpoint>& checkpoint) {
  w.put_text(checkpoint ? to_string(checkpoint->id) : "");
  const Generation in = checkpoint ? checkpoint->saved_in : Generation{};
  for (const std::uint64_t n : {in.number, in.lineage.bits[0], in.lineage.bits[1]}) w.put(n);
}

std::optional<NewestCheckpoint> checkpoint_from(ByteReader& r) {
  const std::string name = r.get_text(64);
  NewestCheckpoint checkpoint;
  for (std::uint64_t* n : {&checkpoint.saved_in.number, &checkpoint.saved_in.lineage.bits[0], &checkpoint.saved_in.lineage.bits[1]})
    *n = r.get<std::uint64_t>();
  if (name.empty()) return std::nullopt;
  const auto id = parse_checkpoint_id(name);
  if (!id) return r.mark_broken(), std::nullopt;
  checkpoint.id = *id;
  return checkpoint;
}

}  // namespace

Result<Saves::Newest> Saves::newest(Lookers lookers) {
  const auto sees = world_.leads() || lookers == Lookers::leader ? Result<RootSight>{RootSight{}} : checkpointer_.sight();
  ELRUN_TRY_ASSIGN(const KnownElsewhere heard, ask_around(sees.ok() ? *sees : RootSight{}));  // a rank that cannot look says nothing
  ByteWriter leaders;
  if (world_.leads()) {
    std::optional<NewestCheckpoint> acknowledged;
    for (const Witness& w : heard.witnesses)
      if (!acknowledged || acknowledged->id < w.id) acknowledged = {w.id, w.saved_in};
    const auto usable = checkpointer_.newest(heard);
    put(leaders, acknowledged);
    put(leaders, usable.ok() ? *usable : std::nullopt);
    leaders.put_bytes(encode_status(usable.ok() ? Result<void>{} : Result<void>{usable.failure()}));
  }
  ELRUN_TRY_ASSIGN(const ByteVector bytes, world_.from_leader(leaders.bytes()));
  ByteReader r{bytes};
  Newest newest{.acknowledged = checkpoint_from(r), .usable = checkpoint_from(r)};
  const ByteSpan status = r.get_bytes(bytes.size());
  ELRUN_TRY(r.finish("what the leader knows of the newest checkpoint"));
  if (auto looked = decode_status(status); !looked.ok()) newest.usable = std::move(looked).failure();
  return newest;
}

Result<Saves::Loaded> Saves::restore() {
  ELRUN_TRY_ASSIGN(const KnownElsewhere heard, look_around());
  Failure last;
  for (int attempt = 0; attempt < damaged_max; ++attempt) {
    ELRUN_TRY_ASSIGN(const Start start, start_together(heard));
    claimed_ = start.fence != 0;
    fence_ = start.fence;
    Loaded result{.restored = {.why = start.why, .steps_again = start.steps_again, .notes = start.notes}, .host_state = {}};
    if (!start.choice.has_value()) return result;
    HostFragments::Copies state = loaded_.make();
    WorldLoads together{world_};
    auto loaded = checkpointer_.load(start, state.fragments(), together, {.readers = threads_});
    if (loaded.ok()) {
      loaded_.write(state);
      result.restored.from = Restored::From::checkpoint;
      result.restored.step = start.choice->step;
      result.restored.checkpoint = checkpointer_.path_of(*start.choice).string();
      result.host_state = std::move(loaded).value();
      return result;
    }
    last = std::move(loaded).failure();
    // `io`: a bad sector is damage, too; the leader finds out whether it is that, or one rank's way to the checkpoint, or a bad time of the storage.
    const bool damaged = last.code == Code::corrupt || last.code == Code::not_found || last.code == Code::io;
    if (world_.over() || !damaged) return last;
    if (world_.leads())
      log_.warning(
          fmt::format("checkpoint {} could not be loaded, the leader looks into all of it: {}", to_string(*start.choice), message(last)));
    ELRUN_TRY(world_.agree(world_.leads() ? checkpointer_.reject(start, last) : Result<void>{}));
  }
  return last;
}

Result<void> Saves::claim(std::uint64_t step) {
  if (claimed_) return {};
  ELRUN_TRY_ASSIGN(const KnownElsewhere heard, look_around());
  ELRUN_TRY_ASSIGN(const Start start, leaders<Start>([&] { return checkpointer_.start_with_state(step, heard); }, decode_start));
  fence_ = start.fence;
  claimed_ = true;
  return {};
}

Result<void> Saves::look_at_fence() {
  auto seen = world_.agree(world_.leads() ? checkpointer_.check_fence() : Result<void>{});
  if (!seen.ok() && !world_.over() && seen.failure().code == Code::not_found) claimed_ = false;
  return seen;
}

SlotRecord Saves::slot_record(std::uint64_t step, std::vector<Aux> aux) const {
  SlotRecord record{.run_id = saver_.run_id,
                    .generation = saver_.generation,
                    .rank = saver_.rank.value(),
                    .world = saver_.world.value(),
                    .plan = saver_.plan,
                    .model = saver_.model,
                    .directory = options_.directory,
                    .keep = options_.keep,
                    .rate = options_.rate.value(),
                    .step = step};
  if (world_.leads()) record.ownership = checkpointer_.ownership();
  record.ownership.fence = fence_;
  record.aux = std::move(aux);
  return record;
}

void Saves::committed_elsewhere(const std::string& acknowledgement) {
  const auto record = decode_acknowledgement(as_bytes(acknowledgement), "the acknowledgement of elrun ckptd");
  if (record.ok() && world_.leads()) checkpointer_.committed_elsewhere(record->id);
}

Result<void> Saves::save(std::uint64_t step, std::span<const Aux> aux, const std::function<Result<void>()>& still_owner, bool removes_old) {
  ELRUN_TRY(claim(step));
  std::uint64_t aux_bytes = 0;
  for (const Aux& a : aux) aux_bytes += a.bytes.size();
  // A ckptd whose line was lost may still commit a save of this step that it had been given.
  const EarlierSaves earlier = options_.async ? EarlierSaves::are_over : EarlierSaves::all_over;
  const MakeRoom room = removes_old ? MakeRoom{earlier, options_.keep} : MakeRoom{EarlierSaves::may_go_on};
  const auto begun = leaders<SaveTicket>([&] { return checkpointer_.begin_save(step, aux_bytes, room); }, decode_save_ticket);
  if (!begun.ok()) {
    // The fence or a directory is gone. The next save claims another fence, where this is still the root that it was.
    if (begun.failure().code == Code::not_found) claimed_ = false;
    return begun.failure();
  }
  const SaveTicket& ticket = *begun;
  ELRUN_TRY(world_.wait_for_arrays("the state for a checkpoint"));
  PartVote mine = [&] {
    try {
      HostFragments::Copies state = saved_.make();
      saved_.read(state);
      return checkpointer_.write_part(ticket, state.fragments(), aux, {.threads = threads_});
    } catch (const std::bad_alloc&) {  // a save that fails costs the save, not the job
      Failure no_memory{Code::exhausted, Remedy::retry,
                        "there is no memory on the host for the copy of the state that a checkpoint is written from"};
      return PartVote{.id = ticket.id, .rank = world_.rank(), .refusal = std::move(no_memory)};
    }
  }();
  if (mine.refusal) mine.refusal = world_.named(std::move(*mine.refusal));
  auto gathered = world_.all_gather(encode(mine));
  if (!gathered.ok()) {  // the generation is over: whoever comes next sweeps what this save left
    return std::move(gathered).failure();
  }
  Result<void> committed;
  if (world_.leads()) {
    std::vector<PartVote> votes;
    for (std::uint32_t r = 0; r < world_.size() && committed.ok(); ++r) {
      auto vote = decode_part_vote((*gathered)[r]);
      if (!vote.ok()) committed = std::move(vote).failure();
      else if (vote->refusal.has_value()) committed = *vote->refusal;
      else votes.push_back(std::move(vote).value());
      if (!committed.ok()) committed = [&, f = committed.failure()]() mutable { return f.rank = Rank{r}, f; }();
    }
    if (committed.ok()) committed = checkpointer_.commit(ticket, votes, still_owner);  // removes what it may when it fails
    else checkpointer_.abandon(ticket);
    if (committed.ok()) {  // whatever becomes of this generation now: it is acknowledged
      session_.checkpoint_saved(checkpointer_.acknowledged());
      tell_store(checkpointer_.acknowledged());
    }
  }
  ELRUN_TRY_ASSIGN(
      const std::string acknowledgement,
      leaders<std::string>(
          [&]() -> Result<std::string> { return committed.ok() ? Result<std::string>{checkpointer_.acknowledged()} : committed.failure(); },
          decode_text));
  if (!world_.leads()) return session_.checkpoint_saved(acknowledgement), Result<void>{};
  const auto kept = removes_old ? checkpointer_.retain(options_.keep) : Result<void>{};  // nobody waits for the outcome meanwhile
  if (!kept.ok()) log_.warning("old checkpoints could not be removed: " + message(kept.failure()));
  return {};
}

}  // namespace elrun::inline v0
